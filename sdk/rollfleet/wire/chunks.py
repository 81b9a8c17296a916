"""One message <-> chunks that fit under the server's `max_payload`: the format of batches and of weights.

One chunk, all numbers little-endian:

```
offset  bytes
0       4      magic b"RLF3", whose last byte is the number of the format
4       16     key of the message: of a batch, see `Identity`; of weights, the number of the version
20      4      u32  index of this chunk
24      4      u32  count of chunks
28      8      u64  total bytes of the message
36             the chunk's piece of the message
```

A message of `total` bytes in `count` chunks has `size = ceil(total / count)` bytes in every chunk but the last, which
has the rest (at least one byte): chunk `index` holds the bytes from `index * size` on.
"""

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire.codec import Allocate, empty_buffer
from rollfleet_api.job import MAX_WORKERS

CHUNK_BYTES = 1 << 20
"""Size of a chunk at most, even where the server takes larger messages."""

K = TypeVar("K", bound=Hashable)

_MAGIC = b"RLF3"
_PREFIX = struct.Struct("<4s16sIIQ")
_BATCH_KEY = struct.Struct("<IHHQ")

PREFIX_BYTES = _PREFIX.size
"""Size of a chunk's prefix, in bytes."""

Received: TypeAlias = bytes | bytearray | memoryview
"""A message as it arrived."""

Chunk: TypeAlias = tuple[bytes | memoryview, ...]
"""A chunk to be sent: its prefix, then the parts of its piece in the sender's memory. Joined, they are the chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHeader:
    """A chunk's prefix, checked.

    Attributes:
        key: The key of the chunk's message, 16 bytes.
        index: Index of the chunk in its message.
        count: Number of the message's chunks.
        total_bytes: Size of the message.
    """

    key: bytes
    index: int
    count: int
    total_bytes: int

    @property
    def piece_bytes(self) -> int:
        """Size of each of the message's pieces but the last."""
        return piece_bytes(self.total_bytes, self.count)

    @property
    def nbytes(self) -> int:
        """Size of this chunk's piece."""
        return min(self.piece_bytes, self.total_bytes - self.index * self.piece_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of a batch in its job.

    Attributes:
        worker: Index of the worker that sent it.
        sequence: Number of the batch in that incarnation, from 0.
        process: Random number of the process. Two learners may give the same incarnation.
    """

    worker: int
    incarnation: int
    sequence: int
    process: int = 0

    @property
    def key(self) -> bytes:
        """Its form in chunks: u32 worker, u16 incarnation, u16 process, u64 sequence."""
        return _BATCH_KEY.pack(self.worker, self.incarnation, self.process, self.sequence)

    @classmethod
    def of(cls, key: bytes) -> Self:
        """Return the identity with a key, the inverse of `key`.

        Raises:
            MessageCorrupt: No job has such a worker. A false index must not cost memory for each worker below it.
        """
        worker, incarnation, process, sequence = _BATCH_KEY.unpack(key)
        if worker >= MAX_WORKERS:
            raise MessageCorrupt(f"sent by worker {worker}: a job has at most {MAX_WORKERS:,} workers")
        return cls(worker=worker, incarnation=incarnation, sequence=sequence, process=process)

    def overtakes(self, other: Self) -> bool:
        """Whether an incomplete batch with the other identity never comes: its worker was started again."""
        return self.worker == other.worker and self.incarnation > other.incarnation


def piece_bytes(total_bytes: int, count: int) -> int:
    """Return the size of each of a message's `count` pieces but the last."""
    return -(-total_bytes // count)


def cut_message(key: bytes, parts: Iterable[memoryview], total_bytes: int, max_chunk_bytes: int) -> Iterator[Chunk]:
    """Cut a message, given as consecutive parts of `total_bytes` together, into chunks.

    The chunks are views: the memory of the parts must not change until the chunks are sent. They have at most
    `max_chunk_bytes`, prefix included, and `CHUNK_BYTES`.
    """
    count = -(-total_bytes // (min(CHUNK_BYTES, max_chunk_bytes) - PREFIX_BYTES))
    remaining = iter(parts)
    part = memoryview(b"")
    for index in range(count):
        header = ChunkHeader(key=key, index=index, count=count, total_bytes=total_bytes)
        views: list[bytes | memoryview] = [_PREFIX.pack(_MAGIC, key, index, count, total_bytes)]
        missing = header.nbytes
        while missing:
            if not part.nbytes:
                part = next(remaining)
            view, part = part[:missing], part[missing:]
            views.append(view)
            missing -= view.nbytes
        yield tuple(views)


def peek(chunk: Received) -> ChunkHeader:
    """Read a chunk's prefix. Check that its fields agree with each other and with the chunk's length.

    Raises:
        MessageCorrupt: They do not, or another version of Rollfleet has made the chunk.
    """
    nbytes = memoryview(chunk).nbytes
    if nbytes < PREFIX_BYTES:
        raise MessageCorrupt(f"{nbytes} bytes are too few for a chunk: the prefix alone has {PREFIX_BYTES}")
    magic, key, index, count, total_bytes = _PREFIX.unpack_from(chunk)
    if magic[:3] != _MAGIC[:3]:
        raise MessageCorrupt(f"not a chunk of rollfleet: it begins with {magic!r} instead of {_MAGIC!r}")
    if magic != _MAGIC:
        raise MessageCorrupt(
            f"a chunk of format {magic!r}, and this rollfleet reads {_MAGIC!r}: install one version on both sides"
        )
    if index >= count:
        raise MessageCorrupt(f"chunk {index} of {count} chunks")
    header = ChunkHeader(key=key, index=index, count=count, total_bytes=total_bytes)
    if (count - 1) * header.piece_bytes >= total_bytes:
        raise MessageCorrupt(f"{total_bytes} bytes cannot be in {count} chunks")
    if nbytes != PREFIX_BYTES + header.nbytes:
        raise MessageCorrupt(f"chunk {index} of {count} has {nbytes - PREFIX_BYTES} bytes instead of {header.nbytes}")
    return header


def piece_of(chunk: Received) -> memoryview:
    """Return the piece of the message that a chunk of `peek` carries."""
    return memoryview(chunk).cast("B")[PREFIX_BYTES:]


class Reassembly:
    """The buffer of one incomplete message. Pieces arrive in any order, and each is copied once.

    Args:
        buffer: Memory for the whole message, uint8 `[total_bytes]`.
        count: Number of pieces.

    Attributes:
        buffer: The same; valid where pieces have been added.

    Example:
        >>> message = Reassembly(np.empty(5, np.uint8), count=2)
        >>> message.add(1, memoryview(b"lo"))
        >>> message.missing_from(0)
        (0, 1)
        >>> message.add(0, memoryview(b"hel"))
        >>> message.complete, message.buffer.tobytes()
        (True, b'hello')
    """

    __slots__ = ("_missing", "_piece_bytes", "_received", "buffer")

    def __init__(self, buffer: NDArray[np.uint8], count: int) -> None:
        self.buffer, self._missing, self._piece_bytes = buffer, count, piece_bytes(buffer.nbytes, count)
        self._received = np.zeros(count, np.bool_)  # zeros: the system maps a page only when it is touched

    @property
    def count(self) -> int:
        """Number of pieces."""
        return len(self._received)

    @property
    def nbytes(self) -> int:
        """Memory that this message holds, in bytes."""
        return self.buffer.nbytes + self._received.nbytes

    @property
    def complete(self) -> bool:
        """Whether every piece was added."""
        return not self._missing

    @property
    def received(self) -> int:
        """Number of pieces that were added."""
        return self.count - self._missing

    def missing_from(self, start: int) -> tuple[int, int]:
        """Return the next missing pieces from `start` on: the first, and the one behind the last of its run."""
        first = start + int(np.append(self._received[start:], False).argmin())
        return first, first + int(np.append(self._received[first:], True).argmax())

    def add(self, index: int, piece: memoryview) -> None:
        """Copy a piece to its offset. A piece that was added before is ignored."""
        if self._received[index]:
            return
        start = index * self._piece_bytes
        self.buffer[start : start + piece.nbytes] = piece
        self._received[index] = True
        self._missing -= 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assembled(Generic[K]):
    """A complete message.

    Attributes:
        key: Its identity.
        buffer: Its bytes, uint8 `[total_bytes]`, writable. The caller owns them: `decode` makes tensors of them in
            place.
    """

    key: K
    buffer: NDArray[np.uint8]


class Assembler(Generic[K]):
    """Reassembles messages from chunks in any order. Each piece is copied once, to its final offset.

    Incomplete messages are bounded by `max_pending` and by `2 * max_message_bytes` bytes; of too many, one that the new
    one overtakes goes, or else the oldest. A message whose chunks all arrive twice is assembled twice: the caller knows
    which it has received. Not thread-safe.

    Args:
        key: Returns the identity of a message from its key in chunks.
        overtakes: Whether the first of two messages ends the wait for the second, if that is incomplete.
        max_message_bytes: Bound of one message, without the prefixes of its chunks.
        max_pending: Bound of the number of incomplete messages.
        allocate: Returns the memory of one message, as `empty_buffer` does.

    Attributes:
        max_message_bytes, max_pending: The same; they may change.
        pending: The incomplete messages, the oldest first.
        pending_bytes: Their memory.

    Example:
        >>> import torch
        >>> from rollfleet.wire.codec import encode
        >>> encoded = encode(b"meta", {("reward",): torch.zeros(100)})
        >>> identity = Identity(worker=0, incarnation=0, sequence=0)
        >>> assembler = Assembler(Identity.of, Identity.overtakes, max_message_bytes=1 << 20)
        >>> for pieces in cut_message(identity.key, encoded.parts, encoded.nbytes, 256):
        ...     assembled = assembler.add(b"".join(pieces))
        >>> assembled.key == identity, assembled.buffer.nbytes == encoded.nbytes
        (True, True)
    """

    def __init__(
        self,
        key: Callable[[bytes], K],
        overtakes: Callable[[K, K], bool],
        *,
        max_message_bytes: int,
        max_pending: int = 64,
        allocate: Allocate = empty_buffer,
    ) -> None:
        self._key, self._overtakes, self._allocate = key, overtakes, allocate
        self.max_message_bytes, self.max_pending = max_message_bytes, max_pending
        self.pending: dict[K, Reassembly] = {}
        self.pending_bytes = 0

    def add(self, chunk: Received) -> Assembled[K] | None:
        """Add one chunk. It is copied, not kept.

        Returns:
            The message that this chunk completes, else None. It gives up incomplete ones that it overtakes.

        Raises:
            MessageCorrupt: The chunk contradicts itself (it is ignored), or other chunks of its message (the whole
                message is given up).
            MessageTooLarge: The message is over `max_message_bytes`. Nothing was allocated.
        """
        header = peek(chunk)
        key = self._key(header.key)
        if header.total_bytes > self.max_message_bytes:
            raise MessageTooLarge(header.total_bytes, self.max_message_bytes)
        pending = self.pending.get(key)
        if pending is None:
            pending = self._begin(key, header)
        elif (pending.count, pending.buffer.nbytes) != (header.count, header.total_bytes):
            self._drop(key)
            raise MessageCorrupt(
                f"chunks of {key} disagree: {pending.buffer.nbytes} bytes in {pending.count} chunks, "
                f"or {header.total_bytes} in {header.count}"
            )
        pending.add(header.index, piece_of(chunk))
        if not pending.complete:
            return None
        self._drop(key)
        for other in [*self.pending]:
            if self._overtakes(key, other):
                self._drop(other)
        return Assembled(key=key, buffer=pending.buffer)

    def _begin(self, key: K, header: ChunkHeader) -> Reassembly:
        needed = header.total_bytes + header.count
        while self.pending and (
            len(self.pending) >= self.max_pending or self.pending_bytes + needed > 2 * self.max_message_bytes
        ):
            oldest = next(iter(self.pending))
            self._drop(next((other for other in self.pending if self._overtakes(key, other)), oldest))
        pending = self.pending[key] = Reassembly(self._allocate(header.total_bytes), header.count)
        self.pending_bytes += pending.nbytes
        return pending

    def _drop(self, key: K) -> None:
        self.pending_bytes -= self.pending.pop(key).nbytes
