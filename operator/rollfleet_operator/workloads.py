"""The Kubernetes Jobs of a CollectorJob: its learner, and its workers, evaluation workers and environment servers.

The pods of all but the learner have an index each.
"""

from collections.abc import Sequence
from typing import Final

from rollfleet_api.env_servers import COUNT, PORT
from rollfleet_api.exit_codes import EXIT_PERMANENT, EXIT_TERMINATED, NO_FAILURE
from rollfleet_api.job import CollectorJob, ResourcesSpec
from rollfleet_api.kubernetes_names import env_servers as service_of_servers
from rollfleet_api.permissions import Role
from rollfleet_operator import env_servers, names, pods
from rollfleet_operator.manifest import Manifest, built, overlay
from rollfleet_operator.revision import evaluation_revision, learner_revision, workers_revision
from rollfleet_operator.settings import Settings

WORKER: Final = "worker"
LEARNER: Final = "learner"

NO_LIMIT: Final = 2**31 - 1
"""The restarts that Kubernetes allows. It counts them for ever; `verdict` counts those of the last hours."""


def workers(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest | None:
    """Build the workers' Indexed Job, of as many completions as workers; None: the job has none."""
    if not job.spec.workers:
        return None
    revision = workers_revision(job, source_digest)
    manifest = _workers(job, settings, Role.WORKER, revision, {"env": _variables(job, revision)})
    # One worker that fails for good ends all of them: fewer workers would collect other data.
    manifest["spec"]["maxFailedIndexes"] = 0
    return manifest


def evaluation(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest | None:
    """Build the evaluation workers' Indexed Job; its pods are like the workers'. None: the job has no evaluation."""
    if job.spec.evaluation is None:
        return None
    revision = evaluation_revision(job, source_digest)
    return _workers(job, settings, Role.EVALUATION, revision, {"command": ["rollfleet", "worker", "--evaluation"]})


def servers(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest | None:
    """Build the environment servers' Indexed Job; None: the job has none. Those of a worker lie side by side.

    It has the revision of the workers: while new ones replace others, each has servers of its own. Its pods start
    their container again by themselves: a Job waits ten seconds before it replaces a pod.
    """
    if (spec := job.spec.env.servers) is None:
        return None
    patience_s = 0 if job.spec.workers else job.spec.failure.learner_timeout_seconds
    limit = ["--idle-timeout", str(patience_s)] if patience_s else []
    container = _container(job, settings, str(Role.ENV_SERVER), spec.resources) | {
        "command": ["rollfleet", "env-server", "--port", str(PORT), *limit],
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 5},
        "env": env_servers.variables(job),
    }
    written = overlay({"spec": pods.inherited(job)}, pods.checked(spec.template))
    template = pods.pod_template(job, settings, Role.ENV_SERVER, container, written)
    template["spec"] |= {"restartPolicy": "OnFailure", "subdomain": service_of_servers(job.metadata.name)}
    manifest = _indexed(job, Role.ENV_SERVER, workers_revision(job, source_digest), template)
    manifest["metadata"]["annotations"] = {names.PER_WORKER: str(spec.replicas)}
    manifest["spec"]["backoffLimit"] = NO_LIMIT
    return manifest


def learner(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest | None:
    """Build the learner's Job of one pod; None: the learner runs elsewhere. See `learner_revision`."""
    if job.spec.learner is None:
        return None
    revision = learner_revision(job, source_digest)
    written = pods.checked(job.spec.learner.template)
    own = next(iter(written["spec"]["containers"]), {"name": LEARNER})
    container: Manifest = {"name": own["name"], "image": job.spec.image or settings.worker_image}
    if not job.spec.workers:
        count = {"name": COUNT, "value": str(job.spec.size(Role.ENV_SERVER))}
        container["env"] = [*_variables(job, workers_revision(job, source_digest)), count]
    template = pods.pod_template(job, settings, Role.LEARNER, container, written)
    manifest = _workload(job, Role.LEARNER, revision, template)
    manifest["spec"] |= {
        "backoffLimit": NO_LIMIT,
        "podFailurePolicy": {"rules": _ignored(container["name"], (EXIT_TERMINATED,))},
    }
    return manifest


def _variables(job: CollectorJob, revision: str) -> list[Manifest]:
    """Return the variables by which a worker, or the learner of a job without any, finds the servers of a revision."""
    run = str(names.Workload(job.metadata.name, Role.ENV_SERVER, revision))
    return env_servers.variables(job, run) if job.spec.env.servers else []


def _workers(job: CollectorJob, settings: Settings, role: Role, revision: str, fields: Manifest) -> Manifest:
    """Build an Indexed Job of `rollfleet worker`; `fields` are more of its container."""
    container = _container(job, settings, WORKER, job.spec.resources) | {"command": ["rollfleet", "worker"]} | fields
    template = pods.pod_template(job, settings, role, container, pods.checked(job.spec.template))
    manifest = _indexed(job, role, revision, template)
    manifest["spec"] |= {
        "backoffLimitPerIndex": NO_LIMIT,
        "podFailurePolicy": {
            "rules": [*_ignored(WORKER, NO_FAILURE), _on_exit("FailIndex", WORKER, (EXIT_PERMANENT,))],
        },
    }
    return manifest


def _container(job: CollectorJob, settings: Settings, name: str, resources: ResourcesSpec) -> Manifest:
    devices = {resources.gpu.resource: str(resources.gpu.count)} if resources.gpu.count else {}
    return {
        "name": name,
        "image": job.spec.image or settings.worker_image,
        "resources": {"requests": {**resources.requests, **devices}, "limits": {**resources.limits, **devices}},
    }


def _indexed(job: CollectorJob, role: Role, revision: str, template: Manifest) -> Manifest:
    manifest, count = _workload(job, role, revision, template), job.spec.size(role)
    manifest["spec"] |= {"completionMode": "Indexed", "completions": count, "parallelism": count}
    return manifest


def _workload(job: CollectorJob, role: Role, revision: str, template: Manifest) -> Manifest:
    name = job.metadata.name
    spec = {"podReplacementPolicy": "Failed", "template": template}
    return built("Job", str(names.Workload(name, role, revision)), names.labels(name, role), spec=spec)


def _ignored(container: str, codes: Sequence[int]) -> list[Manifest]:
    """Return the rules for ends that do not count as restarts: the pod was removed, or exited with one of these."""
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        _on_exit("Ignore", container, codes),
    ]


def _on_exit(action: str, container: str, codes: Sequence[int]) -> Manifest:
    return {"action": action, "onExitCodes": {"containerName": container, "operator": "In", "values": [*codes]}}
