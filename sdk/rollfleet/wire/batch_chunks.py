"""A batch in chunks, and back; see `chunks` for their format.

The key of a batch: u32 worker, u16 incarnation, u16 process, u64 sequence.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire.chunks import (
    PREFIX_BYTES,
    Allocate,
    Chunk,
    ChunkHeader,
    Reassembly,
    Received,
    chunk_count,
    cut_message,
    peek,
)
from rollfleet.wire.codec import Encoded, empty_buffer
from rollfleet_api.job import MAX_WORKERS

_KEY = struct.Struct("<IHHQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of a message in its job.

    Attributes:
        worker: Index of the worker that sent it.
        sequence: Number of the message in that incarnation, from 0.
        process: Random number of the process. A NATS that lost the newest leases gives their incarnations again.
    """

    worker: int
    incarnation: int
    sequence: int
    process: int = 0

    @property
    def key(self) -> bytes:
        """Its form in chunks."""
        return _KEY.pack(self.worker, self.incarnation, self.process, self.sequence)

    @classmethod
    def of(cls, header: ChunkHeader) -> Self:
        """Return the identity of a chunk's message, the inverse of `key`.

        Raises:
            MessageCorrupt: No job has such a worker. A false index must not cost memory for each worker below it.
        """
        worker, incarnation, process, sequence = _KEY.unpack(header.key)
        if worker >= MAX_WORKERS:
            raise MessageCorrupt(f"sent by worker {worker}: a job has at most {MAX_WORKERS:,} workers")
        return cls(worker=worker, incarnation=incarnation, sequence=sequence, process=process)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assembled:
    """A complete message.

    Attributes:
        buffer: Its bytes, uint8 `[total_bytes]`, writable. The caller owns them: `decode` makes tensors of them in
            place.
    """

    identity: Identity
    buffer: npt.NDArray[np.uint8]


def cut(encoded: Encoded, identity: Identity, *, max_chunk_bytes: int) -> Iterator[Chunk]:
    """Cut a message into chunks of at most `max_chunk_bytes` each, prefix included; see `cut_message`."""
    count = chunk_count(encoded.nbytes, max_chunk_bytes)
    return cut_message(identity.key, encoded.parts, encoded.nbytes, count)


class Assembler:
    """Reassembles messages of all workers from chunks in any order. Each piece is copied once, to its final offset.

    Incomplete messages are bounded by `max_pending` and by `2 * max_message_bytes` bytes; the oldest are dropped first.
    A message whose chunks all arrive twice is assembled twice: the caller knows which identities it has received.
    Not thread-safe.

    Args:
        max_message_bytes: Bound of one message, without the prefixes of its chunks.
        max_pending: Bound of the number of incomplete messages.
        allocate: Returns the memory of one message, as `empty_buffer` does.

    Attributes:
        max_message_bytes: The same; it may change.
        max_pending: The same; it may change.
        pending_bytes: Memory of incomplete messages.

    Example:
        >>> import torch
        >>> from rollfleet.wire.codec import encode
        >>> encoded = encode(b"meta", {("reward",): torch.zeros(100)})
        >>> identity = Identity(worker=0, incarnation=0, sequence=0)
        >>> assembler = Assembler(max_message_bytes=1 << 20)
        >>> for pieces in cut(encoded, identity, max_chunk_bytes=256):
        ...     assembled = assembler.add(b"".join(pieces))
        >>> assembled.buffer.nbytes == encoded.nbytes
        True
    """

    def __init__(self, *, max_message_bytes: int, max_pending: int = 64, allocate: Allocate = empty_buffer) -> None:
        self.max_message_bytes = max_message_bytes
        self.max_pending = max_pending
        self._allocate = allocate
        self._pending: dict[Identity, Reassembly] = {}  # in the order of their first chunks
        self._given_up: list[Identity] = []
        self.pending_bytes = 0

    def __len__(self) -> int:
        """Return the number of incomplete messages."""
        return len(self._pending)

    def add(self, chunk: Received) -> Assembled | None:
        """Add one chunk. It is copied, not kept.

        Returns:
            The message that this chunk completes, else None. A worker sends one message after the other: the first
            chunk of a message gives up the worker's earlier incomplete messages, and a complete message also those of
            earlier incarnations.

        Raises:
            MessageCorrupt: The chunk contradicts itself (it is ignored), or other chunks of its message (the whole
                message is given up).
            MessageTooLarge: The message is over `max_message_bytes`. Nothing was allocated.
        """
        header = peek(chunk)
        identity = Identity.of(header)
        if header.total_bytes > self.max_message_bytes:
            raise MessageTooLarge(header.total_bytes, self.max_message_bytes)
        pending = self._pending.get(identity)
        if pending is None:
            pending = self._begin(identity, header)
        elif (pending.count, pending.buffer.nbytes) != (header.count, header.total_bytes):
            self._drop(identity)
            raise MessageCorrupt(
                f"chunks of {identity} disagree: {pending.buffer.nbytes} bytes in {pending.count} chunks, "
                f"or {header.total_bytes} in {header.count}"
            )
        pending.add(header.index, memoryview(chunk).cast("B")[PREFIX_BYTES:])
        if not pending.complete:
            return None
        self._forget(identity)
        self._give_up_before(identity, earlier_incarnations=True)
        return Assembled(identity=identity, buffer=pending.buffer)

    def give_up(self, worker: int, *, but_incarnation: int) -> None:
        """Give up incomplete messages of a worker's other incarnations: their other chunks never come."""
        for identity in list(self._pending):
            if identity.worker == worker and identity.incarnation != but_incarnation:
                self._drop(identity)

    def take_given_up(self) -> list[Identity]:
        """Return the incomplete messages that were given up since the last call."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def _begin(self, identity: Identity, header: ChunkHeader) -> Reassembly:
        self._give_up_before(identity, earlier_incarnations=False)
        needed = header.total_bytes + header.count
        while self._pending and (
            len(self._pending) >= self.max_pending or self.pending_bytes + needed > 2 * self.max_message_bytes
        ):
            self._drop(next(iter(self._pending)))
        pending = self._pending[identity] = Reassembly(self._allocate(header.total_bytes), header.count)
        self.pending_bytes += pending.nbytes
        return pending

    def _give_up_before(self, later: Identity, *, earlier_incarnations: bool) -> None:
        for identity in list(self._pending):
            same_incarnation = identity.incarnation == later.incarnation and identity.sequence < later.sequence
            earlier_incarnation = earlier_incarnations and identity.incarnation < later.incarnation
            if identity.worker == later.worker and (same_incarnation or earlier_incarnation):
                self._drop(identity)

    def _drop(self, identity: Identity) -> None:
        self._forget(identity)
        self._given_up.append(identity)

    def _forget(self, identity: Identity) -> None:
        self.pending_bytes -= self._pending.pop(identity).nbytes
