"""One encoded message <-> chunks that fit under the server's `max_payload`.

One chunk, all numbers little-endian:

```
offset  bytes
0       4      magic b"RLFC"
4       4      u32  xxh32 of the 32 bytes that follow
8       4      u32  worker
12      2      u16  incarnation
14      2      u16  process
16      8      u64  sequence
24      4      u32  index of this chunk
28      4      u32  count of chunks
32      8      u64  total bytes of the message
40             the chunk's piece of the message
```

A message of `total` bytes in `count` chunks has `size = ceil(total / count)` bytes in every chunk but the last, which
has the rest (at least one byte): chunk `index` holds the bytes from `index * size` on. The message's own checksum (see
`codec`) covers the pieces. The checksum here keeps a flipped bit from moving a chunk to another message.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire.chunks import Allocate, Chunk, Reassembly, Received, cut_pieces, piece_count
from rollfleet.wire.codec import Encoded, empty_buffer
from rollfleet_api.job import MAX_WORKERS

__all__ = ["PREFIX_BYTES", "Assembled", "Assembler", "ChunkHeader", "Identity", "cut", "peek"]

_MAGIC = b"RLFC"
_LEAD = struct.Struct("<4sI")
_FIELDS = struct.Struct("<IHHQIIQ")

PREFIX_BYTES = _LEAD.size + _FIELDS.size
"""Size of a chunk's prefix, in bytes."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHeader:
    """A chunk's prefix, checked.

    Attributes:
        identity: The chunk's message.
        index: Index of the chunk in its message.
        count: Number of the message's chunks.
        total_bytes: Size of the message.
    """

    identity: Identity
    index: int
    count: int
    total_bytes: int

    @property
    def offset(self) -> int:
        """Offset of this chunk's piece in the message, in bytes."""
        return self.index * self.piece_bytes

    @property
    def piece_bytes(self) -> int:
        """Size of each of the message's pieces but the last."""
        return -(-self.total_bytes // self.count)

    @property
    def nbytes(self) -> int:
        """Size of this chunk's piece."""
        return min(self.piece_bytes, self.total_bytes - self.offset)


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
    """Cut a message into chunks of at most `max_chunk_bytes` each, prefix included.

    The chunks are views: the tensors behind `encoded` must not change until the chunks are sent.
    """
    count = piece_count(encoded.nbytes, max_chunk_bytes - PREFIX_BYTES)
    header = ChunkHeader(identity=identity, index=0, count=count, total_bytes=encoded.nbytes)
    pieces = cut_pieces(encoded.parts, encoded.nbytes, header.piece_bytes)
    return ((_pack(header, index), *views) for index, views in enumerate(pieces))


def peek(chunk: Received) -> ChunkHeader:
    """Read a chunk's prefix. Check that its fields agree with each other and with the chunk's length.

    Raises:
        MessageCorrupt: They do not.
    """
    nbytes = memoryview(chunk).nbytes
    if nbytes < PREFIX_BYTES:
        raise MessageCorrupt(f"{nbytes} bytes are too few for a chunk: the prefix alone has {PREFIX_BYTES}")
    magic, checksum = _LEAD.unpack_from(chunk)
    if magic != _MAGIC:
        raise MessageCorrupt(f"not a chunk of rollfleet: it begins with {magic!r} instead of {_MAGIC!r}")
    if xxhash.xxh32_intdigest(memoryview(chunk).cast("B")[_LEAD.size : PREFIX_BYTES]) != checksum:
        raise MessageCorrupt("the chunk's prefix was changed on the way: its checksum is wrong")
    worker, incarnation, process, sequence, index, count, total_bytes = _FIELDS.unpack_from(chunk, _LEAD.size)
    if worker >= MAX_WORKERS:  # a false index must not cost memory for each worker below it
        raise MessageCorrupt(f"sent by worker {worker}: a job has at most {MAX_WORKERS:,} workers")
    if index >= count:
        raise MessageCorrupt(f"chunk {index} of {count} chunks")
    identity = Identity(worker=worker, incarnation=incarnation, sequence=sequence, process=process)
    header = ChunkHeader(identity=identity, index=index, count=count, total_bytes=total_bytes)
    if (count - 1) * header.piece_bytes >= total_bytes:
        raise MessageCorrupt(f"{total_bytes} bytes cannot be in {count} chunks")
    if nbytes != PREFIX_BYTES + header.nbytes:
        raise MessageCorrupt(f"chunk {index} of {count} has {nbytes - PREFIX_BYTES} bytes instead of {header.nbytes}")
    return header


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
        if header.total_bytes > self.max_message_bytes:
            raise MessageTooLarge(header.total_bytes, self.max_message_bytes)
        pending = self._pending.get(header.identity)
        if pending is None:
            pending = self._begin(header)
        elif (pending.count, pending.buffer.nbytes) != (header.count, header.total_bytes):
            self._drop(header.identity)
            raise MessageCorrupt(
                f"chunks of {header.identity} disagree: {pending.buffer.nbytes} bytes in {pending.count} chunks, "
                f"or {header.total_bytes} in {header.count}"
            )
        pending.add(header.index, memoryview(chunk).cast("B")[PREFIX_BYTES:])
        if not pending.complete:
            return None
        self._forget(header.identity)
        self._give_up_before(header.identity, earlier_incarnations=True)
        return Assembled(identity=header.identity, buffer=pending.buffer)

    def give_up(self, worker: int, *, but_incarnation: int) -> None:
        """Give up incomplete messages of a worker's other incarnations: their other chunks never come."""
        for identity in list(self._pending):
            if identity.worker == worker and identity.incarnation != but_incarnation:
                self._drop(identity)

    def take_given_up(self) -> list[Identity]:
        """Return the incomplete messages that were given up since the last call."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def _begin(self, header: ChunkHeader) -> Reassembly:
        self._give_up_before(header.identity, earlier_incarnations=False)
        needed = header.total_bytes + header.count
        while self._pending and (
            len(self._pending) >= self.max_pending or self.pending_bytes + needed > 2 * self.max_message_bytes
        ):
            self._drop(next(iter(self._pending)))
        pending = self._pending[header.identity] = Reassembly(self._allocate(header.total_bytes), header.piece_bytes)
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


def _pack(header: ChunkHeader, index: int) -> bytes:
    identity = header.identity
    of = (identity.worker, identity.incarnation, identity.process, identity.sequence)
    fields = _FIELDS.pack(*of, index, header.count, header.total_bytes)
    return _LEAD.pack(_MAGIC, xxhash.xxh32_intdigest(fields)) + fields
