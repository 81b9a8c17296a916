"""A lease of a worker's incarnation or of a learner's session. Each takes it by compare and set: no two share a number.

A message that is no lease counts as none.
"""

import os
import secrets
import socket
from typing import Self

from nats.errors import NoRespondersError
from nats.js.errors import APIError, NotFoundError

from rollfleet.nats.link import Link, unpack_or_skip
from rollfleet_api.jetstream import EXPECTED_SEQUENCE, JetStreamCode
from rollfleet_api.messages import Lease, pack


class Overtaken(Exception):
    """Another process holds the lease.

    Attributes:
        number: Its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number} holds the lease")
        self.number = number


class HeldLease:
    """A lease, held by this process.

    Args:
        link: The connection.
        subject: The lease's subject.
        number: The number that no other process has.

    Attributes:
        number: The same.
        lease: The message.
    """

    def __init__(self, link: Link, subject: str, number: int) -> None:
        self._link, self._subject = link, subject
        self.number = number
        self.lease = Lease(incarnation=number, host=socket.gethostname(), pid=os.getpid(), process=secrets.randbits(16))

    @classmethod
    async def take(cls, link: Link, subject: str, *, least: int = 0, most: int) -> Self:
        """Take the lease with the next number.

        Raises:
            OverflowError: That would be `most`.
        """
        while True:
            last, sequence = await _last(link, subject)
            if (number := max(last + 1, least)) >= most:
                raise OverflowError(f"{subject} was taken {most:,} times; delete the job")
            held = cls(link, subject, number)
            if await held._store(after=sequence):
                return held

    async def hold(self) -> bool:
        """Store the lease again if NATS has lost it. Returns False if it had.

        Raises:
            Overtaken: A later process holds it.
        """
        held = True
        while True:
            last, sequence = await _last(self._link, self._subject)
            if last == self.number:
                return held
            if last > self.number:
                raise Overtaken(last)
            held = False
            await self._store(after=sequence)

    async def _store(self, *, after: int) -> bool:
        """Store the lease. Returns False if another process took it in between."""
        expected = {EXPECTED_SEQUENCE: str(after)}
        try:
            await self._link.js.publish(self._subject, pack(self.lease), headers=expected)
        except APIError as error:
            if error.err_code != JetStreamCode.WRONG_LAST_SEQUENCE:
                raise
            return False
        return True


async def _last(link: Link, subject: str) -> tuple[int, int]:
    """Return the number of the newest lease in NATS, -1: no lease, and its number in the stream."""
    try:
        last = await link.js.get_last_msg(link.subjects.state_stream, subject)  # the read that workers are permitted
    except NotFoundError as error:
        if error.err_code == JetStreamCode.NO_MESSAGE:
            return -1, 0
        raise NoRespondersError from error  # no stream: as from all other reads
    lease = unpack_or_skip(Lease, last.data or b"", subject)
    return lease.incarnation if lease else -1, last.seq or 0
