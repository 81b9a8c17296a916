"""`NatsPort` on real servers: one connection for each job that runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollfleet_api.job import CollectorJob
from rollfleet_api.nats_server import OWNER
from rollfleet_api.streams import deprovisioning, provisioning
from rollfleet_api.subjects import Subjects
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.heartbeat_listener import HeartbeatListener, MessageCount
from rollfleet_operator.nats_access import NatsAccess
from rollfleet_operator.nats_port import Heartbeats, JobKey

TIMEOUT_S = 9.0


class NatsOnServers:
    """`NatsPort` on the servers that `access` names. Each connection is opened on its first use."""

    def __init__(self, access: NatsAccess) -> None:
        self._access, self._messages = access, MessageCount()
        self._open: dict[JobKey, HeartbeatListener] = {}

    @property
    def dropped_messages(self) -> int:
        """Number of messages of jobs that were not kept; see `NatsPort`."""
        return self._messages.dropped

    async def publish(self, job: CollectorJob) -> None:
        """Create or update the job's stream, and publish the job; see `NatsPort`."""
        async with _time_limit(job.key):
            listener = await self._listener(job)
            await listener.nats.carry_out(provisioning(job, listener.kept))
            listener.listen_again()

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """Return the last messages of a job; see `NatsPort`."""
        async with _time_limit(job.key):
            return await (await self._listener(job)).heartbeats()

    async def disconnect(self, key: JobKey) -> None:
        """Close the connection of a job whose server goes; see `NatsPort`."""
        if listener := self._open.get(key):
            await listener.nats.close()

    async def remove(self, key: JobKey) -> None:
        """Forget a job, and remove it from the organisation's NATS; see `NatsPort`."""
        if (listener := self._open.get(key)) is None:
            return
        if self._access.external:
            async with _time_limit("/".join(key)):
                await listener.nats.carry_out(deprovisioning(Subjects(namespace=key.namespace, job=key.name)))
        del self._open[key]
        await listener.close()

    async def close(self) -> None:
        """Disconnect."""
        for listener in self._open.values():
            await listener.nats.close()

    async def _listener(self, job: CollectorJob) -> HeartbeatListener:
        key, login = JobKey(job.metadata.namespace, job.metadata.name), self._access.login(job, OWNER)
        listener = self._open.get(key)
        if listener and listener.uid != job.metadata.uid:  # of an earlier job of this name
            await self._open.pop(key).close()
            listener = None
        if listener is None:
            listener = self._open[key] = HeartbeatListener(job, login, self._messages)
        listener.workers = max(listener.workers, job.spec.workers)
        await listener.nats.use(login)
        return listener


@asynccontextmanager
async def _time_limit(job: str) -> AsyncIterator[None]:
    """Turn a timeout into the one error that the operator expects."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise NatsUnavailable(f"NATS did not answer about {job} within {TIMEOUT_S:g} s") from error
