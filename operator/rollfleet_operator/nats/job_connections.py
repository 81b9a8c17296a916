"""The operator's connections to the accounts of jobs: those of all running jobs, and the most recently used others."""

import time
from collections import OrderedDict
from collections.abc import Callable

from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.connection import Connection, own_user
from rollfleet_operator.nats.heartbeat_listener import HeartbeatListener, MessageCount
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats_port import Endpoint

MOST = 200
"""The most open connections, if fewer jobs run. Those of idle jobs are closed, and opened again when needed."""

IDLE_S = 30.0
"""A connection that was not used for this long is of an idle job: heartbeats of a running one are read every 5 s."""


class JobConnections:
    """The operator's open connections by job."""

    def __init__(self, server: Endpoint, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._keys, self._clock = server, keys, clock
        self._open: OrderedDict[Subjects, HeartbeatListener] = OrderedDict()
        self._used_s: dict[Subjects, float] = {}
        self.messages = MessageCount()

    async def of(self, subjects: Subjects) -> HeartbeatListener:
        """Return the listener of a job, which has its connection."""
        if subjects not in self._open:
            identity = own_user(self._keys.account(subjects))
            account = Connection(self._server, identity, subjects.key)
            self._open[subjects] = HeartbeatListener(account, self.messages)
        self._open.move_to_end(subjects)
        listener = self._open[subjects]
        self._used_s[subjects] = now_s = self._clock()
        while len(self._open) > MOST:
            oldest = next(iter(self._open))
            if now_s - self._used_s[oldest] < IDLE_S:
                break
            await self.leave(oldest)
        return listener

    async def leave(self, subjects: Subjects) -> None:
        """Close the connection of a job."""
        if listener := self._open.pop(subjects, None):
            del self._used_s[subjects]
            await listener.account.close()
            listener.forget()

    async def close(self) -> None:
        """Close all connections."""
        for subjects in list(self._open):
            await self.leave(subjects)
