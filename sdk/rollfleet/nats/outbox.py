"""A worker's batches on their way to the learner: each is kept until the learner has taken it.

A batch that fits into the worker's share of `UNASKED_BYTES` is sent at once. Of a larger one, the learner asks for
chunks, a window of bytes at a time. Once a second the worker offers what it keeps, and the learner asks again for
chunks that were lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollfleet.nats.client import Pieces
from rollfleet.nats.link import Link
from rollfleet.transports.worker_side import PendingBatch
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.chunks import Chunk, Identity, cut_message
from rollfleet.wire.codec import Encoded
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import KeptBatch, Lease, Offer, Receipt, pack

UNASKED_BYTES = 8 << 20  # that all workers of a job together may send unasked: far below what NATS holds for a learner


@dataclass(slots=True, eq=False)
class _Kept:
    """A batch that the learner has not taken.

    Attributes:
        sending: Number of orders that are being carried out to send some of its chunks.
    """

    nbytes: int
    chunks: Sequence[Chunk]
    pending: PendingBatch
    sending: int = 0


class Outbox:
    """The batches of one incarnation of a worker. Everything here runs on the link's thread.

    Args:
        link: The worker's connection.
        worker: Index of the worker.
        lease: The lease of this incarnation.
    """

    def __init__(self, link: Link, worker: int, lease: Lease) -> None:
        self._link, self._worker, self._lease = link, worker, lease
        self._sequence = 0
        self._ahead, self._unasked_bytes = 1, 0  # as long as the job is unknown
        self._kept: dict[int, _Kept] = {}  # by number, in order
        self._to_admit: dict[int, PendingBatch] = {}  # by number, in order
        self._memory: BufferPool | None = None

    def follow(self, job: CollectorJob) -> None:
        """Use this version of the job."""
        before, self._ahead = self._ahead, job.spec.delivery.max_batches_ahead
        if before == 1 < self._ahead:  # the worker will write into their memory before they are taken
            for kept in self._kept.values():
                kept.chunks = [tuple(map(bytes, chunk)) for chunk in kept.chunks]
        self._unasked_bytes = UNASKED_BYTES // (job.spec.workers * (self._ahead + 1))
        self._admit()

    async def add(self, encoded: Encoded, pending: PendingBatch) -> None:
        """Keep a batch, and send it as soon as the learner has room for it."""
        sequence, self._sequence = self._sequence, self._sequence + 1
        identity = Identity(
            worker=self._worker,
            incarnation=self._lease.incarnation,
            sequence=sequence,
            process=self._lease.process,
        )
        parts = encoded.parts if self._ahead == 1 else self._copied(encoded)
        chunks = [*cut_message(identity.key, parts, encoded.nbytes, self._link.client.max_payload)]
        kept = _Kept(encoded.nbytes, chunks, pending)
        self._kept[sequence], self._to_admit[sequence] = kept, pending
        self._admit()
        if encoded.nbytes <= self._unasked_bytes:
            await self._send(sequence, 0, len(chunks))
        else:
            await self.offer()

    async def offer(self) -> None:
        """Name the batches that are kept, if there are any."""
        if not self._kept:
            return
        batches = tuple(
            KeptBatch(sequence=sequence, nbytes=kept.nbytes, chunks=len(kept.chunks), idle=not kept.sending)
            for sequence, kept in self._kept.items()
        )
        offer = Offer(incarnation=self._lease.incarnation, process=self._lease.process, batches=batches)
        await self._link.publish(self._link.subjects.offer(self._worker), pack(offer))

    async def answer(self, receipt: Receipt) -> None:
        """Drop what the learner has taken, and send what it asks for."""
        if receipt.process != self._lease.process:
            return
        for sequence in (*receipt.taken, *receipt.held):
            if (kept := self._kept.get(sequence)) and not kept.pending.delivered.done():
                kept.pending.delivered.set_result(None)
        for sequence in receipt.taken:
            self._kept.pop(sequence, None)
        self._admit()
        for sequence, start, end in receipt.send:
            await self._send(sequence, start, end)

    async def _send(self, sequence: int, start: int, end: int) -> None:
        """Send chunks until the learner has taken their batch."""
        if not (kept := self._kept.get(sequence)):
            return
        kept.sending += 1
        for index in range(start, min(end, len(kept.chunks))):
            if sequence not in self._kept:
                break
            await self._link.publish(self._link.subjects.chunk(self._worker), Pieces(*kept.chunks[index]))
        kept.sending -= 1

    def _admit(self) -> None:
        """Let the worker collect on while at most `maxBatchesAhead` batches wait for the learner, this one included.

        A small batch may be taken before a large one that was sent before it, whose memory must not change yet.
        """
        for sequence, pending in [*self._to_admit.items()]:
            if sum(kept < sequence for kept in self._kept) < self._ahead:
                del self._to_admit[sequence]
                pending.admitted.set_result(None)

    def _copied(self, encoded: Encoded) -> Sequence[memoryview]:
        """Copy a batch: its worker writes into the same memory again when it may be further ahead."""
        self._memory = self._memory or BufferPool(self._ahead + 1)
        copy = self._memory.take(encoded.nbytes)
        end = 0
        for part in encoded.parts:
            copy[end : end + part.nbytes] = part
            end += part.nbytes
        return [copy.data]
