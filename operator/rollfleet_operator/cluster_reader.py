"""The present state of a job in the cluster: watched objects from the cache, the others from the API server."""

from typing import Final

from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import selector
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.state.processes import Run
from rollfleet_api.times import parse_time
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache
from rollfleet_operator.errors import SourceMissing
from rollfleet_operator.job_memory import JobMemory
from rollfleet_operator.manifest import Manifest, digest
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.observed import Observed, observe

LONGEST_S: Final = 60.0
"""Longest interval between lookups of why a run cannot create its pods."""


class ClusterReader:
    """Reader of a job's state: `api` has the objects that are not watched, `cache` the others."""

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api, self._cache = api, cache

    def observe(self, job: CollectorJob, memory: JobMemory) -> Observed:
        """Return the known children of a job."""
        key = JobKey(job.metadata.namespace, job.metadata.name)
        children = self._cache.children(key, str(job.metadata.uid))
        children += memory.secrets.values()
        pods = self._cache.pods(key)
        return observe(job, children, pods, refused_pods=memory.refusal.message, source_digest=memory.source_digest)

    async def read_learner(self, job: CollectorJob, memory: JobMemory) -> None:
        """Read the pods of a learner that has left, whose watch may be late. Raises ApiError if that is refused."""
        seen = self.observe(job, memory)
        left = [run for run in seen.runs if run.role is Role.LEARNER and run.complete and not job.has_ended]
        if any(not any(pod.done for pod in seen.pods_of(run)) for run in left):
            labels = selector(job.metadata.name, Role.LEARNER)
            for pod in await self._api.list("Pod", job.metadata.namespace, labels=labels):
                self._cache.put(pod)

    async def read_namespace(self, job: CollectorJob, memory: JobMemory) -> None:
        """Read whether the job's namespace is being deleted, its pods first. Raises ApiError if that is refused."""
        if not memory.namespace_ends and any(pod.deleting for pod in self.observe(job, memory).pods):
            found = await self._api.get("Namespace", None, job.metadata.namespace) or {"metadata": {}}
            memory.namespace_ends = "deletionTimestamp" in found["metadata"]

    async def read_source(self, job: CollectorJob, memory: JobMemory) -> None:
        """Read the digest of the job's ConfigMap into `memory`; without the ConfigMap the last digest stays.

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

    async def read_refusals(self, job: CollectorJob, memory: JobMemory, now_s: float, least_s: float) -> None:
        """Read into `memory` why a Kubernetes Job of the job cannot create its pods, in the API server's words.

        Args:
            job: The job.
            memory: Its memory, with the last answer.
            now_s: The time, seconds since the epoch.
            least_s: Seconds without a new pod after which the API server is asked, and for which an answer holds at
                least: it searches all events of the namespace for it. The longer a run waits, the longer it holds.

        Raises:
            ApiError: The API server did not list events.
        """
        observed, known = self.observe(job, memory), memory.refusal
        lacking = [
            run
            for run in observed.runs
            if not (run.suspended or run.finished or run.deleting)
            and sum(not pod.finished for pod in observed.pods_of(run)) < run.pods
        ]
        if not lacking:
            known.lacking_s, known.message = 0.0, ""
            return
        newest_s = max(run.created_s for run in lacking)
        newest_s = max((pod.created_s for run in lacking for pod in observed.pods_of(run)), default=newest_s)
        if newest_s > known.asked_s:  # a later pod shows that the refusal is over
            known.message = ""
        known.lacking_s = max(known.lacking_s or now_s, newest_s)
        waits_s = now_s - known.lacking_s
        if waits_s >= least_s and now_s - known.asked_s >= max(least_s, min(waits_s / 4, LONGEST_S)):
            known.asked_s, known.message = now_s, ""
            for run in lacking:
                known.message = known.message or await self._refusal(job, run, observed.pods_of(run))

    async def _refusal(self, job: CollectorJob, run: Run, pods: list[Pod]) -> str:
        fields = f"involvedObject.uid={run.uid},reason=FailedCreate"
        listed = await self._api.list("Event", job.metadata.namespace, fields=fields)
        newest = max(listed, key=_reported_s, default=None)
        if newest is None or any(pod.created_s > _reported_s(newest) for pod in pods):
            return ""
        return str(newest.get("message", "")).removeprefix("Error creating: ")


def _reported_s(event: Manifest) -> float:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"]["creationTimestamp"])
    return parse_time(next(time for time in times if time))
