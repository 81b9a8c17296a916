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

    `credentials` are files, None if this NATS needs none; `source_digest` is that of the files in the job's ConfigMap.
    """

    settings: Settings
    endpoint: Endpoint
    credentials: Mapping[Role, bytes | None]
    source_digest: str = ""


def desired(job: CollectorJob, inputs: Inputs) -> list[Manifest]:
    """Return the desired children of a live job in the order of their creation.

    Raises:
        TemplateInvalid: A template in the job does not have the form of a pod template.

    Example:
        >>> [manifest["kind"] for manifest in desired(job, inputs)]  # doctest: +SKIP
        ['ServiceAccount', 'Secret', 'Secret', 'NetworkPolicy', 'NetworkPolicy', 'Job']
    """
    return [*access_objects(job, inputs), *runs(job, inputs)]


def access_objects(job: CollectorJob, inputs: Inputs) -> list[Manifest]:
    """Return the desired objects that give pods their rights. They do not depend on what the user wrote."""
    found = [access.account(job)]
    found += [access.secret(job, role, inputs.endpoint, inputs.credentials[role]) for role in access.ROLES]
    if inputs.settings.network_policies:
        found += [access.network_policy(job, role, inputs.endpoint, inputs.settings) for role in access.ROLES]
    return [_owned(job, manifest) for manifest in found]


def runs(job: CollectorJob, inputs: Inputs) -> list[Manifest]:
    """Return the desired runs of a live job.

    Raises:
        TemplateInvalid: A template in the job does not have the form of a pod template.
    """
    built = (
        workloads.workers(job, inputs.settings, inputs.source_digest),
        workloads.learner(job, inputs.settings, inputs.source_digest),
        workloads.evaluation(job, inputs.settings, inputs.source_digest),
    )
    return [_owned(job, manifest) for manifest in built if manifest is not None]


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
