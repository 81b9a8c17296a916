"""`NatsPort` in memory, for the operator's tests and for trials without NATS."""

from collections.abc import Awaitable, Callable

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats_port import Endpoint, Heartbeats, JobKey


class NatsInMemory:
    """NATS in memory: it stores jobs, and returns the heartbeats that a test puts in.

    Attributes:
        published: Published jobs, each in its last version.
        beats: The results of `heartbeats`, by job.
        renewed_s: The times of their credentials.
        away: Whether NATS is unreachable.
        on_provision: Called with each job before it is published.
        rotation: A number; credentials are renewed when it changes.
        dropped_messages: Always 0.

    Example:
        >>> nats = NatsInMemory()
        >>> nats.beats[JobKey("default", "cartpole")] = Heartbeats()
    """

    def __init__(self, endpoint: Endpoint | None = None) -> None:
        self._endpoint = endpoint or Endpoint(url="nats://nats.memory:4222")
        self.published: dict[JobKey, CollectorJob] = {}
        self.beats: dict[JobKey, Heartbeats] = {}
        self.renewed_s: dict[JobKey, float] = {}
        self.on_provision: Callable[[CollectorJob], Awaitable[None]] | None = None
        self.away = False
        self.rotation = 0
        self.dropped_messages = 0

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def credentials(self, job: CollectorJob, role: Role) -> bytes:
        """Return a text with the owner's name; it grants nothing."""
        requested = job.metadata.annotations.get(names.ROTATE, "")
        return f"{role} of {job.key} {job.metadata.uid} {self.rotation}{requested}".encode()

    async def provision(self, job: CollectorJob, *, renewed_s: float = 0.0) -> None:
        self._check()
        if self.on_provision:
            await self.on_provision(job)
        key = _key(job)
        known = self.published.get(key)
        if known and known.metadata.uid != job.metadata.uid:
            self.beats.pop(key, None)
        self.published[key], self.renewed_s[key] = job, renewed_s

    async def deprovision(self, key: JobKey) -> None:
        self._check()
        self.published.pop(key, None)
        self.beats.pop(key, None)

    async def provisioned(self) -> set[JobKey]:
        self._check()
        return set(self.published)

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        self._check()
        return self.beats.get(_key(job), Heartbeats())

    async def close(self) -> None:
        """Do nothing."""

    def _check(self) -> None:
        if self.away:
            raise NatsUnavailable("NATS did not answer")


def _key(job: CollectorJob) -> JobKey:
    return JobKey(job.metadata.namespace, job.metadata.name)
