"""The desired children of a job: a pure function of the job and its inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import access, names, workloads
from rollfleet_operator.manifest import Manifest, digest
from rollfleet_operator.nats_port import Endpoint
from rollfleet_operator.observed import Observed
from rollfleet_operator.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that the children depend on besides the job.

    Attributes:
        settings: The operator's settings.
        endpoint: The address of NATS for pods.
        credentials: Credentials file by role; None: this NATS needs none.
        source_digest: Digest of the files in the job's ConfigMap.
        stopped: Whether no pod may run: the job has ended, or waits for a retry.
        queued: Whether another client, such as Kueue, decides when the job's runs start.
    """

    settings: Settings
    endpoint: Endpoint
    credentials: Mapping[Role, bytes | None]
    source_digest: str = ""
    stopped: bool = False
    queued: bool = False


def desired(job: CollectorJob, inputs: Inputs) -> list[Manifest]:
    """Return the desired children in the order of their creation.

    Args:
        job: The job.
        inputs: All else that they depend on.

    Raises:
        TemplateInvalid: A template in the job does not have the form of a pod template.

    Example:
        >>> [manifest["kind"] for manifest in desired(job, inputs)]
        ['ServiceAccount', 'Secret', 'Secret', 'NetworkPolicy', 'NetworkPolicy', 'Job']
    """
    return [*access_objects(job, inputs), *(_owned(job, run) for run in _runs(job, inputs))]


def access_objects(job: CollectorJob, inputs: Inputs) -> list[Manifest]:
    """Return the desired objects that give pods their rights. They do not depend on what the user wrote."""
    roles = access.roles(job)
    found = [access.account(job)]
    found += [access.secret(job, role, inputs.endpoint, inputs.credentials[role]) for role in roles]
    if inputs.settings.network_policies:
        found += [access.network_policy(job, role, inputs.endpoint, inputs.settings) for role in roles]
    return [_owned(job, manifest) for manifest in found]


def kept_runs(job: CollectorJob, inputs: Inputs, observed: Observed) -> list[Manifest]:
    """Return the existing runs, with the desired number of pods, of a job whose next runs cannot be built now.

    Args:
        job: The job.
        inputs: All else that they depend on.
        observed: Its children.
    """
    queued, stopped = _is_queued(job, inputs), _stopped(job, inputs)
    if queued and stopped:
        return []
    size = {"completions": job.spec.workers, "parallelism": job.spec.workers}
    sizes: dict[Role, Manifest] = {Role.WORKER: size} | ({Role.LEARNER: {}} if job.spec.learner else {})
    sizes |= {Role.EVALUATION: {}} if job.spec.evaluation else {}
    return [
        _suspendable(
            {
                "kind": "Job",
                "metadata": {"name": str(run.name), **workloads.queue_metadata(job)},
                "spec": sizes[run.name.role],
            },
            stopped=stopped,
            queued=queued,
        )
        for run in observed.runs
        if run.name.role in sizes
    ]


def _runs(job: CollectorJob, inputs: Inputs) -> list[Manifest]:
    built = (
        workloads.workers(job, inputs.settings, inputs.source_digest),
        workloads.learner(job, inputs.settings, inputs.source_digest),
        workloads.evaluation(job, inputs.settings, inputs.source_digest),
    )
    runs = [manifest for manifest in built if manifest is not None]
    queued, stopped = _is_queued(job, inputs), _stopped(job, inputs)
    if queued and stopped:  # Kueue resumes each Job in its queue: a Job that must not run must not exist
        return []
    return [_suspendable(run, stopped=stopped, queued=queued) for run in runs]


def _suspendable(run: Manifest, *, stopped: bool, queued: bool) -> Manifest:
    """Suspend or resume a run that Kueue does not control. An annotation distinguishes suspensions by others."""
    metadata, suspend = run["metadata"], {} if queued else {"suspend": stopped}
    annotations = {**metadata.get("annotations", {}), names.SUSPEND: str(stopped).lower()}
    return {**run, "metadata": {**metadata, "annotations": annotations}, "spec": run["spec"] | suspend}


def _stopped(job: CollectorJob, inputs: Inputs) -> bool:
    return inputs.stopped or job.spec.suspend


def _is_queued(job: CollectorJob, inputs: Inputs) -> bool:
    return inputs.queued or workloads.queued(job)


def _owned(job: CollectorJob, manifest: Manifest) -> Manifest:
    """Add the namespace, the owner, and a hash of the whole manifest."""
    metadata = {
        **manifest["metadata"],
        "namespace": job.metadata.namespace,
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": job.metadata.name,
                "uid": job.metadata.uid,
                "controller": True,
                # True would need the right to write finalizers of jobs, and would delay deletions without benefit.
                "blockOwnerDeletion": False,
            }
        ],
    }
    whole = {**manifest, "metadata": metadata}
    metadata["annotations"] = {**metadata.get("annotations", {}), names.APPLIED: digest(whole)}
    return whole
