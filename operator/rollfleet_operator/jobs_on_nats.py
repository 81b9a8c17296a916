"""The jobs on NATS: published, published again when NATS may have lost them, and removed when they are over."""

from dataclasses import replace
from math import inf
from typing import Final

from rollfleet_api.job import CollectorJob
from rollfleet_operator.errors import NatsFull, NatsUnavailable
from rollfleet_operator.job_memory import OnNats
from rollfleet_operator.nats_port import JobKey, NatsPort
from rollfleet_operator.retention import is_over
from rollfleet_operator.rotation import rotation_s

GROW_STALLED_S: Final = 10.0
"""The time between checks whether a job without new frames lacks space on NATS."""

GROW_S: Final = 60.0
"""The same for other jobs: they only get on faster with more space."""


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

    async def refresh(
        self, job: CollectorJob, memory: OnNats, now_s: float, *, publishable: bool
    ) -> NatsUnavailable | None:
        """Publish a job that NATS may lack, read its heartbeats, and give its streams more space if they need it.

        What NATS has goes into `memory`. `publishable`: its spec may be published.

        Returns:
            The error of NATS, which stops nothing else: `NatsFull`, or any other.
        """
        if not _belongs(job, memory, now_s):
            return None
        wanted = not job.has_ended or rotation_s(job, now_s) is not None  # credentials of a failed job are refused, too
        since_s, memory.heartbeats = memory.heartbeats.since_s, replace(memory.heartbeats, since_s=inf)
        full: NatsFull | None = None
        try:
            if publishable and wanted and memory.published != job.metadata.generation:
                full = await self._publish(job, memory)
            memory.heartbeats = replace(await self._nats.heartbeats(job), since_s=min(since_s, now_s))
            every_s = GROW_S if memory.rate.update(memory.heartbeats.learner, now_s) else GROW_STALLED_S
            live = not job.has_ended and not job.spec.suspend and memory.published == job.metadata.generation
            if live and now_s - memory.grown_s >= every_s:
                memory.grown_s = 0.0
                memory.grown_s = 0.0 if await self._nats.grow(job) else now_s
        except NatsFull as error:
            return error
        except NatsUnavailable as error:
            memory.published = None  # it may come back without its data
            return full or error
        return full

    async def _publish(self, job: CollectorJob, memory: OnNats) -> NatsFull | None:
        """Publish a job; return why it got no space."""
        memory.published = None
        self._stored.add(JobKey(job.metadata.namespace, job.metadata.name))
        try:
            await self._nats.provision(job, renewed_s=memory.renewed_s)
        except NatsFull as error:
            return error
        memory.published = job.metadata.generation
        return None

    async def remove(self, key: JobKey) -> None:
        """Remove the data of a job that was deleted or is over, if NATS has any."""
        if key in self._stored:
            await self._nats.deprovision(key)
            self._stored.discard(key)


def _belongs(job: CollectorJob, memory: OnNats, now_s: float) -> bool:
    """Return whether NATS must have a job, for which it reserves space: from its first start to its end."""
    started = job.status is not None and job.status.start_time is not None
    waits = job.spec.suspend and not started and memory.published is None
    return not waits and not is_over(job, now_s)
