"""The Kubernetes Jobs of a CollectorJob: its workers and its evaluation workers, one index each, and its learner."""

from collections.abc import Sequence
from typing import Final

from rollfleet_api.exit_codes import EXIT_PERMANENT, EXIT_TERMINATED, NO_FAILURE
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import names, pods
from rollfleet_operator.manifest import Manifest, built
from rollfleet_operator.revision import evaluation_revision, learner_revision, workers_revision
from rollfleet_operator.settings import Settings

WORKER: Final = "worker"
LEARNER: Final = "learner"

NO_LIMIT: Final = 2**31 - 1
"""The restarts that Kubernetes allows. It counts them for ever; `verdict` counts those of the last hours."""


def workers(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest:
    """Build the workers' Indexed Job. Its completions and parallelism are the number of workers."""
    manifest = _indexed(job, settings, Role.WORKER, workers_revision(job, source_digest), job.spec.workers)
    # One worker that fails for good ends all of them: fewer workers would collect other data.
    manifest["spec"]["maxFailedIndexes"] = 0
    return manifest


def evaluation(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest | None:
    """Build the evaluation workers' Indexed Job; its pods are like the workers'. None: the job has no evaluation."""
    if job.spec.evaluation is None:
        return None
    revision = evaluation_revision(job, source_digest)
    return _indexed(job, settings, Role.EVALUATION, revision, job.spec.evaluation.workers, "--evaluation")


def learner(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest | None:
    """Build the learner's Job of one pod; None: the learner runs elsewhere. See `learner_revision`."""
    if job.spec.learner is None:
        return None
    revision = learner_revision(job, source_digest)
    written = pods.checked(job.spec.learner.template)
    own = next(iter(written["spec"]["containers"]), {"name": LEARNER})
    container = {"name": own["name"], "image": job.spec.image or settings.worker_image}
    template = pods.pod_template(job, settings, Role.LEARNER, container, written)
    manifest = _workload(job, Role.LEARNER, revision, template)
    manifest["spec"] |= {
        "backoffLimit": NO_LIMIT,
        "podFailurePolicy": {"rules": _ignored(container["name"], (EXIT_TERMINATED,))},
    }
    return manifest


def _indexed(job: CollectorJob, settings: Settings, role: Role, revision: str, count: int, *arguments: str) -> Manifest:
    """Build an Indexed Job of `rollfleet worker`."""
    spec = job.spec
    devices = {spec.resources.gpu.resource: str(spec.resources.gpu.count)} if spec.resources.gpu.count else {}
    container = {
        "name": WORKER,
        "image": spec.image or settings.worker_image,
        "command": ["rollfleet", "worker", *arguments],
        "resources": {
            "requests": {**spec.resources.requests, **devices},
            "limits": {**spec.resources.limits, **devices},
        },
    }
    template = pods.pod_template(job, settings, role, container, pods.checked(spec.template))
    manifest = _workload(job, role, revision, template)
    manifest["spec"] |= {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimitPerIndex": NO_LIMIT,
        "podFailurePolicy": {
            "rules": [*_ignored(WORKER, NO_FAILURE), _on_exit("FailIndex", WORKER, (EXIT_PERMANENT,))],
        },
    }
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
