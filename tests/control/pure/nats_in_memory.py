"""`NatsPort` in memory, for the operator's tests and for trials without NATS."""

from collections.abc import Awaitable, Callable

from rollfleet_api.job import CollectorJob
from rollfleet_api.state.processes import Heartbeats
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats_port import JobKey


class NatsInMemory:
    """NATS in memory: it stores jobs, and returns the heartbeats that a test puts in.

    Attributes:
        published: Published jobs, each in its last version.
        beats: The results of `heartbeats`, by job.
        away: Whether NATS is unreachable.
        on_publish: Called with each job before a generation of it is published.
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

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        self.check()
        key = JobKey(job.metadata.namespace, job.metadata.name)
        known = self.published.get(key)
        if known and known.metadata.uid != job.metadata.uid:
            self.beats.pop(key, None)
        if self.on_publish and (known is None or known.metadata.generation != job.metadata.generation):
            await self.on_publish(job)
        self.published[key] = job
        return self.beats.get(key, Heartbeats())

    async def disconnect(self, key: JobKey) -> None:
        """Keep its last messages, as a listener does."""

    async def remove(self, key: JobKey) -> None:
        self.published.pop(key, None)
        self.beats.pop(key, None)

    async def close(self) -> None:
        """Do nothing."""

    def check(self) -> None:
        if self.away:
            raise NatsUnavailable("NATS did not answer")
