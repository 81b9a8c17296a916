"""A worker's place in its job: each life takes it by compare and set, so that no two have the same number."""

import os
import socket
from dataclasses import dataclass
from typing import Self

from nats.js.errors import APIError

from rollfleet.errors import JobEnded
from rollfleet.joining.link import Link
from rollfleet.transports.state import read_message
from rollfleet_api.messages import Claim, pack, unpack

_WRONG_LAST_SEQUENCE = 10071


@dataclass(frozen=True, slots=True)
class _Stored:
    """The newest claim of a worker, as NATS has it; incarnation -1: there is none."""

    incarnation: int
    sequence: str
    time: str


class Place:
    """The place of a worker, held by one life of it.

    Args:
        link: The worker's connection.
        worker: Index of the worker.
        stored: The claim of this life.

    Attributes:
        incarnation: Which life of this worker this is, from 0; nobody else has it.
    """

    def __init__(self, link: Link, worker: int, stored: _Stored) -> None:
        self._link, self._worker, self._stored = link, worker, stored
        self.incarnation = stored.incarnation

    @property
    def claim(self) -> Claim:
        """What this life says of itself."""
        return _claim(self.incarnation)

    @classmethod
    async def take(cls, link: Link, worker: int) -> Self:
        """Begin the next life of a worker."""
        while True:
            last = await _last(link, worker)
            if await _publish(link, worker, last.incarnation + 1, after=last):
                mine = await _last(link, worker)
                if mine.incarnation == last.incarnation + 1:
                    return cls(link, worker, mine)

    async def check(self) -> _Stored:
        """The newest claim of this worker.

        Raises:
            JobEnded: A later life has its place.
        """
        last = await _last(self._link, self._worker)
        if last.incarnation > self.incarnation:
            raise JobEnded(f"worker {self._worker} was started again while this life of it was cut off")
        return last

    async def renew(self) -> bool:
        """After a cut, see to it that the claim stands. False: NATS had lost it, and all that was stored with it.

        Raises:
            JobEnded: A later life of this worker has its place.
        """
        before = self._stored
        while True:
            last = await self.check()
            if last.incarnation == self.incarnation:
                self._stored = last
                return last == before  # else somebody has put it back
            await _publish(self._link, self._worker, self.incarnation, after=last)


def _claim(incarnation: int) -> Claim:
    return Claim(incarnation=incarnation, host=socket.gethostname(), pid=os.getpid())


async def _last(link: Link, worker: int) -> _Stored:
    last = await read_message(link, link.subjects.claim(worker))
    if last is None:
        return _Stored(-1, "0", "")
    headers = last.headers or {}
    return _Stored(unpack(Claim, last.data).incarnation, headers["Nats-Sequence"], headers["Nats-Time-Stamp"])


async def _publish(link: Link, worker: int, incarnation: int, *, after: _Stored) -> bool:
    """False: somebody else has claimed it in between."""
    expected = {"Nats-Expected-Last-Subject-Sequence": after.sequence}
    try:
        await link.js.publish(link.subjects.claim(worker), pack(_claim(incarnation)), headers=expected)
    except APIError as error:
        if error.err_code != _WRONG_LAST_SEQUENCE:
            raise
        return False
    return True
