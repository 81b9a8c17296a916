"""A worker's lease. Each incarnation takes it by compare and set, so no two have the same number."""

import os
import socket
from dataclasses import dataclass
from typing import Self

from nats.js.errors import APIError

from rollfleet.errors import JobEnded
from rollfleet.nats.link import Link
from rollfleet.nats.state import read_message
from rollfleet_api.jetstream import EXPECTED_SEQUENCE, JetStreamCode
from rollfleet_api.messages import Lease, pack, unpack


@dataclass(frozen=True, slots=True)
class _Stored:
    """A worker's newest lease in NATS; incarnation -1: no lease."""

    incarnation: int
    sequence: str
    time: str


class WorkerLease:
    """A worker's lease, held by one incarnation.

    Args:
        link: The worker's connection.
        worker: Index of the worker.
        stored: The lease of this incarnation.

    Attributes:
        incarnation: Number of this incarnation, from 0; no other process has it.

    Example:
        >>> lease = await WorkerLease.take(link, worker=3)  # doctest: +SKIP
        >>> lease.incarnation  # doctest: +SKIP
        0
    """

    def __init__(self, link: Link, worker: int, stored: _Stored) -> None:
        self._link, self._worker, self._stored = link, worker, stored
        self.incarnation = stored.incarnation

    @property
    def lease(self) -> Lease:
        """The stored message."""
        return _lease(self.incarnation)

    @classmethod
    async def take(cls, link: Link, worker: int) -> Self:
        """Take the lease for the worker's next incarnation."""
        while True:
            last = await _last(link, worker)
            if await _publish(link, worker, last.incarnation + 1, after=last):
                mine = await _last(link, worker)
                if mine.incarnation == last.incarnation + 1:
                    return cls(link, worker, mine)

    async def check(self) -> _Stored:
        """Return the newest lease of this worker.

        Raises:
            JobEnded: A later incarnation holds the lease.
        """
        last = await _last(self._link, self._worker)
        if last.incarnation > self.incarnation:
            raise JobEnded(f"worker {self._worker} was started again while this incarnation was cut off")
        return last

    async def renew(self) -> bool:
        """Store the lease again after a cut, if NATS has lost it. Returns False if NATS has lost its storage.

        Raises:
            JobEnded: A later incarnation holds the lease.
        """
        before = self._stored
        while True:
            last = await self.check()
            if last.incarnation == self.incarnation:
                self._stored = last
                return last == before  # else the job's owner has stored it again
            await _publish(self._link, self._worker, self.incarnation, after=last)


def _lease(incarnation: int) -> Lease:
    return Lease(incarnation=incarnation, host=socket.gethostname(), pid=os.getpid())


async def _last(link: Link, worker: int) -> _Stored:
    last = await read_message(link, link.subjects.lease(worker))
    if last is None:
        return _Stored(-1, "0", "")
    headers = last.headers or {}
    return _Stored(unpack(Lease, last.data).incarnation, headers["Nats-Sequence"], headers["Nats-Time-Stamp"])


async def _publish(link: Link, worker: int, incarnation: int, *, after: _Stored) -> bool:
    """Store a lease. Returns False if another process took it in between."""
    expected = {EXPECTED_SEQUENCE: after.sequence}
    try:
        await link.js.publish(link.subjects.lease(worker), pack(_lease(incarnation)), headers=expected)
    except APIError as error:
        if error.err_code != JetStreamCode.WRONG_LAST_SEQUENCE:
            raise
        return False
    return True
