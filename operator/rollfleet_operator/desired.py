"""The desired children of a job: pure functions of the job, the operator's settings, and the job's access to NATS."""

from rollfleet_api.address import PUBLIC_URL_FILE
from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import access, env_servers, names, nats_server, workloads
from rollfleet_operator.manifest import Manifest, digest
from rollfleet_operator.nats_access import NatsAccess
from rollfleet_operator.scheduler import PREFIX, scheduler_labels
from rollfleet_operator.settings import Settings


def access_objects(
    job: CollectorJob, settings: Settings, nats: NatsAccess, *, server: bool, public_host: str = ""
) -> list[Manifest]:
    """Return the desired objects that give pods their rights and their names, and the job's NATS server.

    Args:
        job: The job.
        settings: The operator's settings.
        nats: The access to the job's NATS.
        server: Whether the job needs its server now.
        public_host: The address of its Service for machines outside of the cluster; empty: it has none.

    Raises:
        TemplateInvalid: The server's template in the job does not have the form of a pod template.
    """
    found = [access.account(job, settings)]
    for role in access.ROLES:
        more = env_servers.files(job, nats.key)
        if role is Role.LEARNER and public_host:
            more[PUBLIC_URL_FILE] = nats.login(job, role, host=public_host).url.encode()
        found.append(access.secret(job, role, nats.login(job, role), more))
        if settings.network_policies:
            found.append(access.network_policy(job, role, nats, settings))
    if job.spec.env.servers:
        found.append(env_servers.service(job))
        if settings.network_policies:
            found.append(env_servers.network_policy(job, settings))
    if nats.external is None:
        mounted = nats_server.secret(job, settings, nats, public_host)
        found += [mounted, nats_server.service(job, settings)]
        if settings.network_policies:
            found.append(nats_server.network_policy(job, settings))
        if server:
            found.append(nats_server.deployment(job, settings, mounted))
    return [_owned(job, manifest) for manifest in found]


def runs(job: CollectorJob, settings: Settings, source_digest: str = "") -> list[Manifest]:
    """Return the desired runs of a live job; `source_digest` is that of the files in the job's ConfigMap.

    Raises:
        TemplateInvalid: A template in the job does not have the form of a pod template.
    """
    builders = (workloads.servers, workloads.workers, workloads.learner, workloads.evaluation)
    built = (build(job, settings, source_digest) for build in builders)
    return [_owned(job, manifest) for manifest in built if manifest is not None]


def _owned(job: CollectorJob, manifest: Manifest) -> Manifest:
    """Add labels of the job's templates and of its scheduler, the namespace, the owner, and a hash of it all.

    No other label of the job: tools label what they own, and would delete what is not in their lists.
    """
    template: Manifest = manifest.get("spec", {}).get("template", {"metadata": {"labels": {}}})
    labels = {key: label for key, label in template["metadata"]["labels"].items() if not key.startswith(PREFIX)}
    # In a queue of its own, a server would wait for room that its workers have taken.
    queue = scheduler_labels(job.metadata.labels) if manifest["kind"] == "Job" else {}
    metadata = {
        **manifest["metadata"],
        "labels": labels | queue | manifest["metadata"]["labels"],
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
