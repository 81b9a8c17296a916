"""The operator's connections into the accounts of jobs: those that were used last, not one for each job there is."""

from collections import OrderedDict
from dataclasses import dataclass

from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.connection import Connection, Server, own_user
from rollfleet_operator.nats.heartbeat_listener import HeartbeatListener
from rollfleet_operator.nats.keys import Keys

MOST = 200
"""Connections that are kept: jobs that run. Those of idle jobs are pushed out, and opened anew when they are needed."""


@dataclass(frozen=True, slots=True)
class JobConnection:
    """The operator in the account of a job's streams."""

    account: Connection
    listener: HeartbeatListener


class JobConnections:
    """The accounts that the operator is connected to.

    Args:
        server: Where NATS is.
        keys: What the operator's users are signed with.
        most: Connections that are kept.
    """

    def __init__(self, server: Server, keys: Keys, most: int = MOST) -> None:
        self._server, self._keys, self._most = server, keys, most
        self._open: OrderedDict[Subjects, JobConnection] = OrderedDict()

    async def of(self, subjects: Subjects) -> JobConnection:
        """The room of a job."""
        if subjects not in self._open:
            identity = own_user(self._keys.account(subjects, Role.LEARNER))
            account = Connection(self._server, identity, subjects.key)
            self._open[subjects] = JobConnection(account, HeartbeatListener(account))
        self._open.move_to_end(subjects)
        connection = self._open[subjects]
        if len(self._open) > self._most:
            _, oldest = self._open.popitem(last=False)
            await oldest.account.close()
        return connection

    async def leave(self, subjects: Subjects) -> None:
        """Let go of a job's connection."""
        connection = self._open.pop(subjects, None)
        if connection:
            await connection.account.close()

    async def close(self) -> None:
        """Let go of all."""
        for subjects in list(self._open):
            await self.leave(subjects)
