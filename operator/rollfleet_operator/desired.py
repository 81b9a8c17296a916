"""The desired children of a job: a pure function of the job and its inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import access, names, workloads
from rollfleet_operator.manifest import Manifest, digest
from rollfleet_operator.nats_port import Endpoint
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
    """

    settings: Settings
    endpoint: Endpoint
    credentials: Mapping[Role, bytes | None]
    source_digest: str = ""
    stopped: bool = False


def desired(job: CollectorJob, inputs: Inputs) -> list[Manifest]:
    """Return the desired children in the order of their creation.

    Raises:
        TemplateInvalid: A template in the job does not have the form of a pod template.

    Example:
        >>> [manifest["kind"] for manifest in desired(job, inputs)]
        ['ServiceAccount', 'Secret', 'Secret', 'NetworkPolicy', 'NetworkPolicy', 'Job']
    """
    roles = tuple(Role)
    found = [access.account(job)]
    found += [access.secret(job, role, inputs.endpoint, inputs.credentials[role]) for role in roles]
    if inputs.settings.network_policies:
        found += [access.network_policy(job, role, inputs.endpoint) for role in roles]
    return [_owned(job, manifest) for manifest in [*found, *_runs(job, inputs)]]


def _runs(job: CollectorJob, inputs: Inputs) -> list[Manifest]:
    built = (
        workloads.workers(job, inputs.settings, inputs.source_digest),
        workloads.learner(job, inputs.settings, inputs.source_digest),
    )
    runs = [manifest for manifest in built if manifest is not None]
    stopped = inputs.stopped or job.spec.suspend
    if workloads.queued(job):
        # Kueue resumes each Job in its queue: a Job that must not run must not exist.
        return [] if stopped else runs
    return [{**run, "spec": {**run["spec"], "suspend": stopped}} for run in runs]


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
    metadata["annotations"] = {names.APPLIED: digest(whole)}
    return whole
