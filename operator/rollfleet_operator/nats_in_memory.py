"""NATS in memory: what the operator's tests, and a try-out without NATS, put in its place."""

from collections.abc import Awaitable, Callable

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats_port import Endpoint, Heartbeats, JobKey


class NatsInMemory:
    """Keeps what it is told, and tells what it is made to hear.

    Attributes:
        published: The jobs whose spec was published, as it was published last.
        heard: What `heartbeats` returns, by job.
        away: True: NATS cannot be reached.
        on_provision: Is told of each publication, before it happens.
        rotation: A change of it makes mounted credentials due for renewal.
    """

    def __init__(self, endpoint: Endpoint | None = None) -> None:
        self._endpoint = endpoint or Endpoint(url="nats://nats.memory:4222")
        self.published: dict[JobKey, CollectorJob] = {}
        self.heard: dict[JobKey, Heartbeats] = {}
        self.on_provision: Callable[[CollectorJob], Awaitable[None]] | None = None
        self.away = False
        self.rotation = 0

    @property
    def endpoint(self) -> Endpoint:
        """Where pods would find NATS."""
        return self._endpoint

    async def credentials(self, job: CollectorJob, role: Role, mounted: bytes | None) -> bytes | None:
        """Says whose they are; they open nothing."""
        return f"{role} of {job.key} {job.metadata.uid} {self.rotation}".encode()

    async def provision(self, job: CollectorJob) -> None:
        """Remember the job."""
        self._check()
        if self.on_provision:
            await self.on_provision(job)
        key = _key(job)
        known = self.published.get(key)
        if known and known.metadata.uid != job.metadata.uid:
            self.heard.pop(key, None)
        self.published[key] = job

    async def deprovision(self, key: JobKey) -> None:
        """Forget the job, and what was heard of it."""
        self._check()
        self.published.pop(key, None)
        self.heard.pop(key, None)

    async def provisioned(self) -> set[JobKey]:
        """The jobs that are remembered."""
        self._check()
        return set(self.published)

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """What was put into `heard`."""
        self._check()
        return self.heard.get(_key(job), Heartbeats())

    async def close(self) -> None:
        """There is nothing to close."""

    def _check(self) -> None:
        if self.away:
            raise NatsUnavailable("NATS did not answer")


def _key(job: CollectorJob) -> JobKey:
    return JobKey(job.metadata.namespace, job.metadata.name)
