"""The operator's connections to the accounts of jobs: those of all running jobs, and the most recently used others."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.connection import Connection, Server, own_user
from rollfleet_operator.nats.heartbeat_listener import HeartbeatListener, MessageCount
from rollfleet_operator.nats.keys import Keys

MOST = 200
"""The most open connections, if fewer jobs run. Those of idle jobs are closed, and opened again when needed."""

IDLE_S = 30.0
"""A connection that was not used for this long is of an idle job: heartbeats of a running one are read every 5 s."""


@dataclass(slots=True)
class JobConnection:
    """The operator's connection to the account of a job's streams."""

    account: Connection
    listener: HeartbeatListener
    used_s: float = 0.0


class JobConnections:
    """The operator's open connections by job."""

    def __init__(self, server: Server, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._keys, self._clock = server, keys, clock
        self._open: OrderedDict[Subjects, JobConnection] = OrderedDict()
        self.messages = MessageCount()

    async def of(self, subjects: Subjects) -> JobConnection:
        """Return the connection of a job."""
        if subjects not in self._open:
            identity = own_user(self._keys.account(subjects))
            account = Connection(self._server, identity, subjects.key)
            self._open[subjects] = JobConnection(account, HeartbeatListener(account, self.messages))
        self._open.move_to_end(subjects)
        connection = self._open[subjects]
        connection.used_s = self._clock()
        while len(self._open) > MOST:
            oldest = next(iter(self._open))
            if connection.used_s - self._open[oldest].used_s < IDLE_S:
                break
            await self.leave(oldest)
        return connection

    async def leave(self, subjects: Subjects) -> None:
        """Close the connection of a job."""
        connection = self._open.pop(subjects, None)
        if connection:
            await connection.account.close()
            connection.listener.forget()

    async def close(self) -> None:
        """Close all connections."""
        for subjects in list(self._open):
            await self.leave(subjects)
