"""The desired children of a job: pure functions of the job, the operator's settings, and the job's access to NATS."""

from collections.abc import Mapping

from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import access, names, workloads
from rollfleet_operator.manifest import Manifest, digest
from rollfleet_operator.nats_port import Endpoint
from rollfleet_operator.settings import Settings


def access_objects(
    job: CollectorJob, settings: Settings, endpoint: Endpoint, credentials: Mapping[Role, bytes]
) -> list[Manifest]:
    """Return the desired objects that give pods their rights. They do not depend on what the user wrote."""
    found = [access.account(job)]
    found += [access.secret(job, role, endpoint, credentials[role]) for role in access.ROLES]
    if settings.network_policies:
        found += [access.network_policy(job, role, endpoint, settings) for role in access.ROLES]
    return [_owned(job, manifest) for manifest in found]


def runs(job: CollectorJob, settings: Settings, source_digest: str = "") -> list[Manifest]:
    """Return the desired runs of a live job; `source_digest` is that of the files in the job's ConfigMap.

    Raises:
        TemplateInvalid: A template in the job does not have the form of a pod template.
    """
    builders = (workloads.workers, workloads.learner, workloads.evaluation)
    built = (build(job, settings, source_digest) for build in builders)
    return [_owned(job, manifest) for manifest in built if manifest is not None]


def _owned(job: CollectorJob, manifest: Manifest) -> Manifest:
    """Add the job's labels, which a policy or a scheduler may want, the namespace, the owner, and a hash of it all."""
    metadata = {
        **manifest["metadata"],
        "labels": job.metadata.labels | manifest["metadata"]["labels"],
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
