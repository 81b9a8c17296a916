"""The jobs on NATS: published, published again when NATS may have lost them, and removed when they are over."""

from dataclasses import replace
from math import inf

from rollfleet_api.job import CollectorJob
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.job_memory import OnNats
from rollfleet_operator.nats_port import JobKey, NatsPort
from rollfleet_operator.retention import is_over
from rollfleet_operator.rotation import rotation_s


class JobsOnNats:
    """The jobs on NATS."""

    def __init__(self, nats: NatsPort) -> None:
        self._nats = nats
        self._stored: set[JobKey] = set()

    async def stored(self) -> set[JobKey]:
        """Return the jobs with data on NATS, those of earlier operators included.

        Raises:
            NatsUnavailable: NATS did not list its jobs.
        """
        self._stored |= await self._nats.provisioned()
        return set(self._stored)

    async def refresh(self, job: CollectorJob, memory: OnNats, now_s: float) -> NatsUnavailable | None:
        """Publish a job that NATS may lack, and read its heartbeats into `memory`.

        Returns:
            The error of NATS, which stops nothing else.
        """
        if not _belongs(job, memory, now_s):
            return None
        wanted = not job.has_ended or rotation_s(job, now_s) is not None  # credentials of a failed job are refused, too
        since_s, memory.heartbeats = memory.heartbeats.since_s, replace(memory.heartbeats, since_s=inf)
        try:
            if wanted and memory.published != job.metadata.generation:
                memory.published = None
                self._stored.add(JobKey(job.metadata.namespace, job.metadata.name))
                await self._nats.provision(job, renewed_s=memory.renewed_s)
                memory.published = job.metadata.generation
            memory.heartbeats = replace(await self._nats.heartbeats(job), since_s=min(since_s, now_s))
        except NatsUnavailable as error:
            memory.published = None  # it may come back without its data
            return error
        return None

    async def remove(self, key: JobKey) -> None:
        """Remove the data of a job that was deleted or is over, if NATS has any."""
        if key in self._stored:
            await self._nats.deprovision(key)
            self._stored.discard(key)


def _belongs(job: CollectorJob, memory: OnNats, now_s: float) -> bool:
    """Return whether NATS must have a job, for which it reserves memory: from its first start to its end."""
    started = job.status is not None and job.status.start_time is not None
    waits = job.spec.suspend and not started and memory.published is None
    return not waits and not is_over(job, now_s)
