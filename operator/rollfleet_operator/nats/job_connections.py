"""The operator's connections to the accounts of jobs: those of all running jobs, and the most recently used others."""

import time
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
        self._open: dict[Subjects, tuple[HeartbeatListener, float]] = {}  # each with its last use, the newest last
        self.messages = MessageCount()

    async def of(self, subjects: Subjects) -> HeartbeatListener:
        """Return the listener of a job, which has its connection."""
        if subjects in self._open:
            listener, _ = self._open.pop(subjects)
        else:
            account = Connection(self._server, own_user(self._keys.account(subjects)), subjects.key)
            listener = HeartbeatListener(account, self.messages)
        now_s = self._clock()
        self._open[subjects] = listener, now_s
        while len(self._open) > MOST:
            oldest, (_, used_s) = next(iter(self._open.items()))
            if now_s - used_s < IDLE_S:
                break
            await self.leave(oldest)
        return listener

    async def leave(self, subjects: Subjects) -> None:
        """Close the connection of a job."""
        if subjects in self._open:
            listener, _ = self._open.pop(subjects)
            await listener.account.close()
            listener.forget()

    async def close(self) -> None:
        """Close all connections."""
        for subjects in list(self._open):
            await self.leave(subjects)
