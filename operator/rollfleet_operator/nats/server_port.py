"""`NatsPort` on real servers: one connection for each job that runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollfleet_api.job import CollectorJob
from rollfleet_api.nats_server import OWNER
from rollfleet_api.subjects import Subjects
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats import streams
from rollfleet_operator.nats.connection import Connection
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
            await streams.provision(listener.nats, job, listener.kept(job))

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """Return the last messages of a job; see `NatsPort`."""
        async with _time_limit(job.key):
            return await (await self._listener(job)).heartbeats(job)

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
                await streams.deprovision(listener.nats, Subjects(namespace=key.namespace, job=key.name))
        del self._open[key]
        await listener.nats.close()
        listener.forget()

    async def close(self) -> None:
        """Disconnect."""
        for listener in self._open.values():
            await listener.nats.close()

    async def _listener(self, job: CollectorJob) -> HeartbeatListener:
        key, login = JobKey(job.metadata.namespace, job.metadata.name), self._access.login(job, OWNER)
        listener = self._open.get(key)
        if listener is None:
            listener = self._open[key] = HeartbeatListener(Connection(login, job.key), self._messages)
        elif listener.nats.login != login:  # a later job of this name, or one with new passwords
            await listener.nats.close()
            listener.nats = Connection(login, job.key)
        return listener


@asynccontextmanager
async def _time_limit(job: str) -> AsyncIterator[None]:
    """Turn a timeout into the one error that the operator expects."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise NatsUnavailable(f"NATS did not answer about {job} within {TIMEOUT_S:g} s") from error
