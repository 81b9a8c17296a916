"""The Kubernetes Jobs of a CollectorJob: its workers, one index each, and its learner."""

from typing import Final

from rollfleet_api.exit_codes import EXIT_HOPELESS, EXIT_TERMINATED
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import names, pods
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.revision import learner_revision, workers_revision
from rollfleet_operator.settings import Settings

WORKER: Final = "worker"
LEARNER: Final = "learner"


def workers(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest:
    """Build the workers' Indexed Job. Its completions and parallelism are the number of workers."""
    spec = job.spec
    revision = workers_revision(job, source_digest)
    devices = {spec.resources.gpu.resource: str(spec.resources.gpu.count)} if spec.resources.gpu.count else {}
    container = {
        "name": WORKER,
        "image": spec.image or settings.worker_image,
        "command": ["rollfleet", "worker"],
        "resources": {
            "requests": {**spec.resources.requests, **devices},
            "limits": {**spec.resources.limits, **devices},
        },
    }
    template = pods.pod_template(job, Role.WORKER, revision, container, spec.template)
    manifest = _workload(job, Role.WORKER, revision, template)
    manifest["spec"] |= {
        "completionMode": "Indexed",
        "completions": spec.workers,
        "parallelism": spec.workers,
        "backoffLimitPerIndex": spec.failure.max_restarts_per_worker,
        # One worker that fails for good ends all of them: fewer workers would collect other data.
        "maxFailedIndexes": 0,
        "podFailurePolicy": {
            "rules": [*_ignore_disruptions(WORKER), _on_exit("FailIndex", WORKER, EXIT_HOPELESS)],
        },
    }
    return manifest


def learner(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest | None:
    """Build the learner's Job of one pod; None: the learner runs elsewhere."""
    if job.spec.learner is None:
        return None
    revision = learner_revision(job, source_digest)
    written = job.spec.learner.template
    container = {"name": pods.first_container(written, LEARNER), "image": job.spec.image or settings.worker_image}
    template = pods.pod_template(job, Role.LEARNER, revision, container, written)
    manifest = _workload(job, Role.LEARNER, revision, template)
    manifest["spec"] |= {
        "backoffLimit": job.spec.failure.max_restarts_per_worker,
        "podFailurePolicy": {"rules": _ignore_disruptions(container["name"])},
    }
    return manifest


def queued(job: CollectorJob) -> bool:
    """Return whether Kueue decides when the job's pods start."""
    return names.QUEUE_NAME in job.metadata.labels


def _workload(job: CollectorJob, role: Role, revision: str, template: Manifest) -> Manifest:
    name = job.metadata.name
    queue = {key: value for key, value in job.metadata.labels.items() if key.startswith(names.KUEUE_PREFIX)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": str(names.Workload(name, role, revision)),
            "labels": queue | names.labels(name, role) | {names.REVISION: revision},
        },
        "spec": {"podReplacementPolicy": "Failed", "template": template},
    }


def _ignore_disruptions(container: str) -> list[Manifest]:
    """Return the rules for ends that do not count as restarts: the cluster, or a user, removed the pod."""
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        _on_exit("Ignore", container, EXIT_TERMINATED),
    ]


def _on_exit(action: str, container: str, code: int) -> Manifest:
    return {"action": action, "onExitCodes": {"containerName": container, "operator": "In", "values": [code]}}
