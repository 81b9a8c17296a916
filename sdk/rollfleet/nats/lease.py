"""A worker's lease. Each incarnation takes it by compare and set, so no two have the same number.

A message that is no lease counts as none.
"""

import os
import secrets
import socket
from typing import Self

from nats.errors import NoRespondersError
from nats.js.errors import APIError, NotFoundError

from rollfleet.errors import WorkerReplaced
from rollfleet.nats.link import Link, unpack_or_skip
from rollfleet.rollout.trajectory_ids import MAX_INCARNATIONS
from rollfleet_api.jetstream import EXPECTED_SEQUENCE, JetStreamCode
from rollfleet_api.messages import Lease, pack


class WorkerLease:
    """A worker's lease, held by one incarnation.

    Args:
        link: The worker's connection.
        worker: Index of the worker.
        incarnation: Number of this incarnation, from 0; no other process has it.
    """

    def __init__(self, link: Link, worker: int, incarnation: int) -> None:
        self._link, self._worker = link, worker
        self.incarnation = incarnation
        self.lease = Lease(
            incarnation=incarnation, host=socket.gethostname(), pid=os.getpid(), process=secrets.randbits(16)
        )

    @classmethod
    async def take(cls, link: Link, worker: int) -> Self:
        """Take the lease for the worker's next incarnation.

        Raises:
            OverflowError: The worker has had all `MAX_INCARNATIONS`.
        """
        while True:
            last, sequence = await _last(link, worker)
            if last + 1 == MAX_INCARNATIONS:
                raise OverflowError(f"worker {worker} was started {MAX_INCARNATIONS:,} times; delete its job")
            lease = cls(link, worker, last + 1)
            if await lease._store(after=sequence):
                return lease

    async def hold(self) -> bool:
        """Store the lease again if NATS has lost it. Returns False if it had.

        Raises:
            WorkerReplaced: A later incarnation holds the lease.
        """
        held = True
        while True:
            last, sequence = await _last(self._link, self._worker)
            if last == self.incarnation:
                return held
            if last > self.incarnation:
                raise WorkerReplaced(
                    f"worker {self._worker} was started again: incarnation {last} holds its lease, and this one, "
                    f"{self.incarnation}, ends"
                )
            held = False
            await self._store(after=sequence)

    async def _store(self, *, after: int) -> bool:
        """Store the lease. Returns False if another process took it in between."""
        expected = {EXPECTED_SEQUENCE: str(after)}
        try:
            await self._link.js.publish(self._link.subjects.lease(self._worker), pack(self.lease), headers=expected)
        except APIError as error:
            if error.err_code != JetStreamCode.WRONG_LAST_SEQUENCE:
                raise
            return False
        return True


async def _last(link: Link, worker: int) -> tuple[int, int]:
    """Return the incarnation of a worker's newest lease in NATS, -1: no lease, and its number in the stream."""
    subject = link.subjects.lease(worker)
    try:
        last = await link.js.get_last_msg(link.subjects.state_stream, subject)  # the read that workers are permitted
    except NotFoundError as error:
        if error.err_code == JetStreamCode.NO_MESSAGE:
            return -1, 0
        raise NoRespondersError from error  # no stream: as from all other reads
    lease = unpack_or_skip(Lease, last.data or b"", subject)
    return lease.incarnation if lease else -1, last.seq or 0
