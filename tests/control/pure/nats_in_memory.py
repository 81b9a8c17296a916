"""`NatsPort` in memory, for the operator's tests and for trials without NATS."""

from collections.abc import Awaitable, Callable

from rollfleet_api.job import CollectorJob
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats_port import Heartbeats, JobKey


class NatsInMemory:
    """NATS in memory: it stores jobs, and returns the heartbeats that a test puts in.

    Attributes:
        published: Published jobs, each in its last version.
        beats: The results of `heartbeats`, by job.
        away: Whether NATS is unreachable.
        on_publish: Called with each job before it is published.
        dropped_messages: Always 0.

    Example:
        >>> nats = NatsInMemory()
        >>> nats.beats[JobKey("default", "cartpole")] = Heartbeats()
    """

    def __init__(self) -> None:
        self.published: dict[JobKey, CollectorJob] = {}
        self.beats: dict[JobKey, Heartbeats] = {}
        self.on_publish: Callable[[CollectorJob], Awaitable[None]] | None = None
        self.away = False
        self.dropped_messages = 0

    async def publish(self, job: CollectorJob) -> None:
        self._check()
        if self.on_publish:
            await self.on_publish(job)
        key = _key(job)
        known = self.published.get(key)
        if known and known.metadata.uid != job.metadata.uid:
            self.beats.pop(key, None)
        self.published[key] = job

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        self._check()
        return self.beats.get(_key(job), Heartbeats())

    async def disconnect(self, key: JobKey) -> None:
        """Keep its last messages, as a listener does."""

    async def remove(self, key: JobKey) -> None:
        self.published.pop(key, None)
        self.beats.pop(key, None)

    async def close(self) -> None:
        """Do nothing."""

    def _check(self) -> None:
        if self.away:
            raise NatsUnavailable("NATS did not answer")


def _key(job: CollectorJob) -> JobKey:
    return JobKey(job.metadata.namespace, job.metadata.name)
