"""A worker's lease: each incarnation takes it by compare and set, so that no two have the same number."""

import os
import socket
from dataclasses import dataclass
from typing import Self

from nats.js.errors import APIError

from rollfleet.errors import JobEnded
from rollfleet.nats.link import Link
from rollfleet.nats.state import read_message
from rollfleet_api.messages import Lease, pack, unpack

_WRONG_LAST_SEQUENCE = 10071


@dataclass(frozen=True, slots=True)
class _Stored:
    """A worker's newest lease as NATS has it; incarnation -1: there is none."""

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
    """

    def __init__(self, link: Link, worker: int, stored: _Stored) -> None:
        self._link, self._worker, self._stored = link, worker, stored
        self.incarnation = stored.incarnation

    @property
    def lease(self) -> Lease:
        """The lease as it is stored."""
        return _lease(self.incarnation)

    @classmethod
    async def take(cls, link: Link, worker: int) -> Self:
        """Begin a worker's next incarnation."""
        while True:
            last = await _last(link, worker)
            if await _publish(link, worker, last.incarnation + 1, after=last):
                mine = await _last(link, worker)
                if mine.incarnation == last.incarnation + 1:
                    return cls(link, worker, mine)

    async def check(self) -> _Stored:
        """The newest lease of this worker.

        Raises:
            JobEnded: A later incarnation holds the lease.
        """
        last = await _last(self._link, self._worker)
        if last.incarnation > self.incarnation:
            raise JobEnded(f"worker {self._worker} was started again while this incarnation was cut off")
        return last

    async def renew(self) -> bool:
        """After a cut, make sure that the lease is stored. False: NATS had lost it, and all that was stored with it.

        Raises:
            JobEnded: A later incarnation holds the lease.
        """
        before = self._stored
        while True:
            last = await self.check()
            if last.incarnation == self.incarnation:
                self._stored = last
                return last == before  # else somebody has put it back
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
    """False: another process took the lease in between."""
    expected = {"Nats-Expected-Last-Subject-Sequence": after.sequence}
    try:
        await link.js.publish(link.subjects.lease(worker), pack(_lease(incarnation)), headers=expected)
    except APIError as error:
        if error.err_code != _WRONG_LAST_SEQUENCE:
            raise
        return False
    return True
