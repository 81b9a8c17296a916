"""What should be there for a job: a pure function of the job and of what else it is told."""

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
    """What the children depend on besides the job.

    Attributes:
        settings: The operator's.
        endpoint: Where pods find NATS.
        credentials: By role; None: this NATS asks for none.
        source_digest: Of the files in the job's ConfigMap.
        stopped: The job is over, or is about to start anew: no pod is to run.
    """

    settings: Settings
    endpoint: Endpoint
    credentials: Mapping[Role, bytes | None]
    source_digest: str = ""
    stopped: bool = False


def desired(job: CollectorJob, inputs: Inputs) -> list[Manifest]:
    """All that should be there, in the order in which it is made.

    Raises:
        TemplateInvalid: A template in the job has not the shape of one.
    """
    roles = tuple(Role)
    found = [access.account(job)]
    found += [access.secret(job, role, inputs.endpoint, inputs.credentials[role]) for role in roles]
    if inputs.settings.network_policies:
        found += [access.network_policy(job, role, inputs.endpoint) for role in roles]
    return [_owned(job, manifest) for manifest in [*found, *_runs(job, inputs)]]


def _runs(job: CollectorJob, inputs: Inputs) -> list[Manifest]:
    made = (
        workloads.workers(job, inputs.settings, inputs.source_digest),
        workloads.learner(job, inputs.settings, inputs.source_digest),
    )
    runs = [manifest for manifest in made if manifest is not None]
    stopped = inputs.stopped or job.spec.suspend
    if workloads.queued(job):
        # What Kueue has queued, Kueue resumes: what must not run must not be there.
        return [] if stopped else runs
    return [{**run, "spec": {**run["spec"], "suspend": stopped}} for run in runs]


def _owned(job: CollectorJob, manifest: Manifest) -> Manifest:
    """The manifest with its namespace, its owner, and the hash of all it says."""
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
                # True would need a right to write finalizers of jobs, and would hold the job back for nothing.
                "blockOwnerDeletion": False,
            }
        ],
    }
    whole = {**manifest, "metadata": metadata}
    metadata["annotations"] = {names.APPLIED: digest(whole)}
    return whole
