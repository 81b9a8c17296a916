"""The present state of a job in the cluster: watched objects from the cache, the others from the API server."""

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache, owned_by
from rollfleet_operator.clock import parse_time
from rollfleet_operator.errors import SourceMissing
from rollfleet_operator.job_memory import JobMemory
from rollfleet_operator.manifest import Manifest, Ref, digest
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.observed import Observed, Pod, Run, observe


class ClusterReader:
    """Reader of a job's state.

    Args:
        api: The API server, for objects that are not watched.
        cache: The watched objects.
    """

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api, self._cache = api, cache

    def observe(self, job: CollectorJob, memory: JobMemory, *, refused_pods: str = "") -> Observed:
        """Return the known children of a job."""
        key = JobKey(job.metadata.namespace, job.metadata.name)
        children = self._cache.children(key, str(job.metadata.uid))
        children += memory.secrets.values()
        return observe(children, self._cache.pods(key), refused_pods=refused_pods, source_digest=memory.source_digest)

    async def remember_secrets(self, job: CollectorJob, memory: JobMemory) -> None:
        """Read the job's Secrets into `memory`, unless they are there.

        Raises:
            ApiError: The API server refused.
        """
        for role in Role:
            which = Ref("Secret", names.secret(job.metadata.name, role))
            if which not in memory.secrets:
                found = await self._api.get(which.kind, job.metadata.namespace, which.name)
                if found is not None and owned_by(found, str(job.metadata.uid)):
                    found["metadata"].pop("managedFields", None)
                    memory.secrets[which] = {"apiVersion": "v1", "kind": "Secret", **found}

    async def read_source(self, job: CollectorJob, memory: JobMemory) -> None:
        """Read the digest of the job's ConfigMap into `memory`.

        Raises:
            SourceMissing: The ConfigMap does not exist.
            ApiError: The API server refused.
        """
        source = job.spec.source
        if source is None:
            memory.source_digest = ""
            return
        found = await self._api.get("ConfigMap", job.metadata.namespace, source.config_map)
        if found is None:
            raise SourceMissing(
                f"ConfigMap `{source.config_map}` does not exist in namespace `{job.metadata.namespace}`"
            )
        memory.source_digest = digest([found.get("data"), found.get("binaryData")])

    async def why_pods_are_refused(self, job: CollectorJob, observed: Observed) -> str:
        """Return why a Kubernetes Job of the job cannot create its pods, in the API server's words; empty: it can.

        Raises:
            ApiError: The API server did not list events.
        """
        for run in observed.runs:
            pods = [pod for pod in observed.pods_of(run) if not pod.finished]
            if not (run.suspended or run.finished or run.deleting) and len(pods) < run.pods:
                refused = await self._refusal(job, run, observed.pods_of(run))
                if refused:
                    return refused
        return ""

    async def _refusal(self, job: CollectorJob, run: Run, pods: list[Pod]) -> str:
        fields = f"involvedObject.uid={run.uid},reason=FailedCreate"
        listed = await self._api.list("Event", job.metadata.namespace, fields=fields)
        newest = max(listed.items, key=_reported_s, default=None)
        # A later pod shows that the refusal is over.
        if newest is None or any(pod.created_s > _reported_s(newest) for pod in pods):
            return ""
        return str(newest.get("message", "")).removeprefix("Error creating: ")


def _reported_s(event: Manifest) -> float:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"]["creationTimestamp"])
    return parse_time(next(time for time in times if time))
