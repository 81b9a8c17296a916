"""The two Kubernetes Jobs of a job: its workers, one index each, and its learner."""

from typing import Final

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import names, pods
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.revision import learner_revision, workers_revision
from rollfleet_operator.settings import Settings

WORKER: Final = "worker"
LEARNER: Final = "learner"

EXIT_HOPELESS: Final = 2
"""A worker's exit code when it would fail again in the same way."""

EXIT_TERMINATED: Final = 143
"""The exit code of a process that SIGTERM ended: somebody deleted the pod."""


def workers(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest:
    """The workers: an Indexed Job whose completions and parallelism are the number of workers."""
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
        # One worker that is given up ends them all: a job with a part of its workers would collect other data.
        "maxFailedIndexes": 0,
        "podFailurePolicy": {
            "rules": [*_not_its_fault(WORKER), _on_exit("FailIndex", WORKER, EXIT_HOPELESS)],
        },
    }
    return manifest


def learner(job: CollectorJob, settings: Settings, source_digest: str = "") -> Manifest | None:
    """The learner: a Job of one pod; None: this job's learner is somewhere else."""
    if job.spec.learner is None:
        return None
    revision = learner_revision(job, source_digest)
    written = job.spec.learner.template
    container = {"name": pods.first_container(written, LEARNER), "image": job.spec.image or settings.worker_image}
    template = pods.pod_template(job, Role.LEARNER, revision, container, written)
    manifest = _workload(job, Role.LEARNER, revision, template)
    manifest["spec"] |= {
        "backoffLimit": job.spec.failure.max_restarts_per_worker,
        "podFailurePolicy": {"rules": _not_its_fault(container["name"])},
    }
    return manifest


def queued(job: CollectorJob) -> bool:
    """Whether Kueue decides when the job's pods start."""
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


def _not_its_fault(container: str) -> list[Manifest]:
    """What takes nothing from the restarts that a pod has: the cluster, or somebody, took it away."""
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        _on_exit("Ignore", container, EXIT_TERMINATED),
    ]


def _on_exit(action: str, container: str, code: int) -> Manifest:
    return {"action": action, "onExitCodes": {"containerName": container, "operator": "In", "values": [code]}}
