"""The operator's connections to the accounts of jobs: the most recently used ones."""

from collections import OrderedDict
from dataclasses import dataclass

from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.connection import Connection, Server, own_user
from rollfleet_operator.nats.heartbeat_listener import HeartbeatListener
from rollfleet_operator.nats.keys import Keys

MOST = 200
"""The most open connections. Those of idle jobs are closed first, and opened again when they are needed."""


@dataclass(frozen=True, slots=True)
class JobConnection:
    """The operator's connection to the account of a job's streams.

    Attributes:
        account: The connection.
        listener: The listener on it.
    """

    account: Connection
    listener: HeartbeatListener


class JobConnections:
    """The operator's open connections by job.

    Args:
        server: The address of NATS.
        keys: The keys that sign the operator's users.
        most: The most open connections.
    """

    def __init__(self, server: Server, keys: Keys, most: int = MOST) -> None:
        self._server, self._keys, self._most = server, keys, most
        self._open: OrderedDict[Subjects, JobConnection] = OrderedDict()

    async def of(self, subjects: Subjects) -> JobConnection:
        """Return the connection of a job."""
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
        """Close the connection of a job."""
        connection = self._open.pop(subjects, None)
        if connection:
            await connection.account.close()

    async def close(self) -> None:
        """Close all connections."""
        for subjects in list(self._open):
            await self.leave(subjects)
