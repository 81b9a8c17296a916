"""`NatsPort` on real servers: one connection for each job that runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollfleet_api.job import CollectorJob
from rollfleet_api.nats_server import OWNER
from rollfleet_api.state.processes import Heartbeats
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.job_on_nats import JobOnNats, MessageCount
from rollfleet_operator.nats_access import NatsAccess
from rollfleet_operator.nats_port import JobKey

TIMEOUT_S = 9.0


class NatsOnServers:
    """`NatsPort` on the servers that `access` names. Each connection is opened on its first use."""

    def __init__(self, access: NatsAccess) -> None:
        self._access, self._messages = access, MessageCount()
        self._jobs: dict[JobKey, JobOnNats] = {}

    @property
    def dropped_messages(self) -> int:
        """Number of messages of jobs that were not kept; see `NatsPort`."""
        return self._messages.dropped

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """Send a job to its processes, and return their heartbeats; see `NatsPort`."""
        key, login = JobKey(job.metadata.namespace, job.metadata.name), self._access.login(job, OWNER)
        async with _time_limit(job.key):
            known = self._jobs.get(key)
            if known and known.uid != job.metadata.uid:  # an earlier job of this name
                await self._jobs.pop(key).close()
            known = self._jobs.setdefault(key, JobOnNats(job, login, self._messages))
            await known.nats.use(login)
            return await known.heartbeats(job)

    async def disconnect(self, key: JobKey) -> None:
        """Close the connection of a job whose server goes; see `NatsPort`."""
        if known := self._jobs.get(key):
            await known.nats.close()

    async def remove(self, key: JobKey) -> None:
        """Forget a job, and tell its processes on an organisation's NATS; see `NatsPort`."""
        if (known := self._jobs.get(key)) is None:
            return
        if self._access.external:
            async with _time_limit("/".join(key)):
                await known.end()
        del self._jobs[key]
        await known.close()

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.gather(*(known.nats.close() for known in self._jobs.values()))


@asynccontextmanager
async def _time_limit(job: str) -> AsyncIterator[None]:
    """Turn a timeout into the one error that the operator expects."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise NatsUnavailable(f"NATS did not answer about {job} within {TIMEOUT_S:g} s") from error
