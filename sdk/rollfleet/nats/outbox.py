"""A worker's batches on their way to the learner: each is kept until the learner has taken it.

A batch that fits into the worker's share of `UNASKED_BYTES` is sent at once. Of a larger one, the learner asks for
chunks, a window of bytes at a time. Once a second the worker offers what it keeps, and the learner asks again for
chunks that were lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rollfleet.nats.client import Pieces
from rollfleet.nats.link import Link
from rollfleet.transports.worker_side import PendingBatch
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.chunks import Chunk, Identity, cut_message
from rollfleet.wire.codec import Encoded
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import MAX_COUNT, pack
from rollfleet_api.transfers import KeptBatch, Offer, Receipt

UNASKED_BYTES = 8 << 20  # that all workers of a job together may send unasked: far below what NATS holds for a learner


@dataclass(slots=True, eq=False)
class _Kept:
    """A batch that the learner has not taken.

    Attributes:
        cut_for: The server's `max_payload` when it was cut into chunks.
        sending: Number of orders that are being carried out to send some of its chunks.
    """

    key: bytes
    parts: Sequence[memoryview]
    nbytes: int
    pending: PendingBatch
    chunks: Sequence[Chunk] = field(default=(), init=False)
    cut_for: int = field(default=0, init=False)
    sending: int = 0

    def cut(self, max_payload: int) -> None:
        self.chunks, self.cut_for = [*cut_message(self.key, self.parts, self.nbytes, max_payload)], max_payload


class Outbox:
    """The batches of one process of a worker. Everything here runs on the link's thread.

    Args:
        link: The worker's connection.
        worker: Index of the worker.
        process: Random number of this process.

    Attributes:
        incarnation: Number of this incarnation of the worker. The learner gives it before it asks for batches.
    """

    def __init__(self, link: Link, worker: int, process: int) -> None:
        self._link, self._worker, self._process = link, worker, process
        self.incarnation = 0
        self._answers = 0  # number of the last receipt that was carried out
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
                kept.parts = [memoryview(bytes(part)) for part in kept.parts]
                kept.cut(kept.cut_for)
        self._unasked_bytes = UNASKED_BYTES // (job.spec.workers * (self._ahead + 1))
        self._admit()

    async def add(self, encoded: Encoded, pending: PendingBatch) -> None:
        """Keep a batch, and send it as soon as the learner has room for it."""
        sequence, self._sequence = self._sequence, self._sequence + 1
        identity = Identity(
            worker=self._worker,
            incarnation=self.incarnation,
            sequence=sequence,
            process=self._process,
        )
        parts = encoded.parts if self._ahead == 1 else self._copied(encoded)
        kept = _Kept(identity.key, parts, encoded.nbytes, pending)
        kept.cut(self._link.client.max_payload)
        self._kept[sequence], self._to_admit[sequence] = kept, pending
        self._admit()
        if encoded.nbytes <= self._unasked_bytes:
            await self._send(sequence, 0, len(kept.chunks))
        else:
            await self.offer()

    async def offer_again(self) -> None:
        """Offer after a cut: no earlier request is carried out any more."""
        self._answers = MAX_COUNT
        await self.offer()

    async def offer(self) -> None:
        """Name the batches that are kept, if there are any."""
        if not self._kept:
            return
        for kept in self._kept.values():
            if kept.cut_for > (limit := self._link.client.max_payload):  # another server
                kept.cut(limit)
        batches = tuple(
            KeptBatch(sequence=sequence, nbytes=kept.nbytes, chunks=len(kept.chunks), idle=not kept.sending)
            for sequence, kept in self._kept.items()
        )
        offer = Offer(incarnation=self.incarnation, process=self._process, answers=self._answers, batches=batches)
        await self._link.publish(self._link.subjects.offer(self._worker), pack(offer))

    async def answer(self, receipt: Receipt) -> None:
        """Drop what the learner has taken, and send what it asks for."""
        for sequence in (*receipt.taken, *receipt.held):
            if (kept := self._kept.get(sequence)) and not kept.pending.delivered.done():
                kept.pending.delivered.set_result(None)
        for sequence in receipt.taken:
            self._kept.pop(sequence, None)
        self._admit()
        for sequence, start, end in receipt.send:
            await self._send(sequence, start, end)
        self._answers = receipt.number or self._answers  # the last one, also after a cut

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

        One that the learner cannot read is taken before those that it holds, whose memory must not change yet.
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
