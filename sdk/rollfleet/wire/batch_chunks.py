"""One encoded message <-> chunks that fit under the server's `max_payload`.

One chunk, all numbers little-endian:

```
offset  bytes
0       4      magic b"RLFC"
4       4      u32  xxh32 of the 32 bytes that follow
8       4      u32  worker
12      4      u32  incarnation
16      8      u64  sequence
24      4      u32  index of this chunk
28      4      u32  count of chunks
32      8      u64  total bytes of the message
40             the chunk's share of the message
```

A message of `total` bytes in `count` chunks has `size = ceil(total / count)` bytes in every chunk but the last, which
has the rest (at least one byte): chunk `index` holds the bytes from `index * size` on. The message's own checksum (see
`codec`) covers what the chunks carry; the one here keeps a flipped bit from booking a chunk to another message.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire.codec import Encoded, empty_buffer

__all__ = ["PREFIX_BYTES", "Assembled", "Assembler", "ChunkHeader", "Identity", "cut", "peek", "split"]

_MAGIC = b"RLFC"
_LEAD = struct.Struct("<4sI")
_FIELDS = struct.Struct("<IIQIIQ")
_MAX_COUNT = (1 << 32) - 1
MAX_WORKERS = 1 << 16  # of a job: who lies about its number must not cost memory for each

PREFIX_BYTES = _LEAD.size + _FIELDS.size
"""Bytes that each chunk has besides its share of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which message of a job: the `sequence`-th that the `incarnation`-th life of a worker sent."""

    worker: int
    incarnation: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHeader:
    """What a chunk says about itself, already found to be consistent."""

    identity: Identity
    index: int
    count: int
    total_bytes: int

    @property
    def offset(self) -> int:
        """Where this chunk's share begins in the message, in bytes."""
        return self.index * _chunk_size(self.total_bytes, self.count)

    @property
    def nbytes(self) -> int:
        """Length of this chunk's share of the message."""
        return min(_chunk_size(self.total_bytes, self.count), self.total_bytes - self.offset)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assembled:
    """A message that is complete.

    Attributes:
        identity: Which message.
        buffer: All of it, uint8 `[total_bytes]`, writable. It is the caller's: `decode` makes tensors of it in place.
    """

    identity: Identity
    buffer: npt.NDArray[np.uint8]


def split(encoded: Encoded, identity: Identity, *, max_chunk_bytes: int) -> Iterator[bytes]:
    """As `cut`, and each chunk in one piece: a copy that is made when it is asked for."""
    return (b"".join(pieces) for pieces in cut(encoded, identity, max_chunk_bytes=max_chunk_bytes))


def cut(encoded: Encoded, identity: Identity, *, max_chunk_bytes: int) -> "Iterator[tuple[bytes | memoryview, ...]]":
    """Cut a message into chunks of at most `max_chunk_bytes` each, prefix included.

    Each chunk is its prefix and pieces of the message where they lie: the tensors behind `encoded` must stay as they
    are until it is sent.

    Raises:
        ValueError: `max_chunk_bytes` has no room for the prefix and one byte, more chunks than a u32 counts would be
            needed, or the identity's numbers do not fit their fields.
    """
    if max_chunk_bytes <= PREFIX_BYTES:
        raise ValueError(f"max_chunk_bytes={max_chunk_bytes} is too small: a chunk's prefix has {PREFIX_BYTES} bytes")
    count = -(-encoded.nbytes // (max_chunk_bytes - PREFIX_BYTES))
    if count > _MAX_COUNT:
        raise ValueError(f"max_chunk_bytes={max_chunk_bytes} would cut {encoded.nbytes} bytes into {count} chunks")
    header = ChunkHeader(identity=identity, index=0, count=count, total_bytes=encoded.nbytes)
    try:
        _pack(header, 0)
    except struct.error as exc:
        raise ValueError(f"{identity} does not fit u32, u32, u64") from exc
    return _chunks(encoded, header)


def peek(chunk: bytes | bytearray | memoryview) -> ChunkHeader:
    """Read what a chunk says about itself, and check that it fits together and fits the chunk's length.

    Raises:
        MessageCorrupt: It does not.
    """
    nbytes = memoryview(chunk).nbytes
    if nbytes < PREFIX_BYTES:
        raise MessageCorrupt(f"{nbytes} bytes are too few for a chunk: the prefix alone has {PREFIX_BYTES}")
    magic, checksum = _LEAD.unpack_from(chunk)
    if magic != _MAGIC:
        raise MessageCorrupt(f"not a chunk of rollfleet: it begins with {magic!r} instead of {_MAGIC!r}")
    if xxhash.xxh32_intdigest(memoryview(chunk).cast("B")[_LEAD.size : PREFIX_BYTES]) != checksum:
        raise MessageCorrupt("the chunk's prefix was changed on the way: its checksum is wrong")
    worker, incarnation, sequence, index, count, total_bytes = _FIELDS.unpack_from(chunk, _LEAD.size)
    if worker >= MAX_WORKERS:
        raise MessageCorrupt(f"sent by worker {worker}: a job has at most {MAX_WORKERS:,} workers")
    if index >= count:
        raise MessageCorrupt(f"chunk {index} of {count} chunks")
    if (count - 1) * _chunk_size(total_bytes, count) >= total_bytes:
        raise MessageCorrupt(f"{total_bytes} bytes cannot be in {count} chunks")
    identity = Identity(worker=worker, incarnation=incarnation, sequence=sequence)
    header = ChunkHeader(identity=identity, index=index, count=count, total_bytes=total_bytes)
    if nbytes != PREFIX_BYTES + header.nbytes:
        raise MessageCorrupt(f"chunk {index} of {count} has {nbytes - PREFIX_BYTES} bytes instead of {header.nbytes}")
    return header


@dataclass(slots=True, kw_only=True, eq=False)
class _Pending:
    count: int
    buffer: npt.NDArray[np.uint8]
    seen: npt.NDArray[np.bool_]  # [count]: zeros that the system maps when they are touched, whatever count claims
    missing: int

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes + self.seen.nbytes


class Assembler:
    """Puts messages together from chunks in any order, of any number of workers, each copied straight to its place.

    Whatever is sent, what waits here is at most `max_pending` messages and `2 * max_message_bytes` bytes; the oldest go
    first. A message whose chunks all come twice is assembled twice: the caller knows which identities it has had.
    Not thread-safe.

    Attributes:
        max_pending: As above; it may change.
        dropped: Incomplete messages that were given up, to make room or because they could no longer become complete.
        pending_bytes: Memory held for incomplete messages.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int,
        max_pending: int = 64,
        allocate: Callable[[int], npt.NDArray[np.uint8]] = empty_buffer,
    ) -> None:
        """Set the bounds: bytes of one message (chunks' prefixes not counted), and incomplete messages at once.

        `allocate` gives the memory of one message, as `empty_buffer` does.
        """
        if max_message_bytes < 1 or max_pending < 1:
            raise ValueError(f"max_message_bytes={max_message_bytes} and max_pending={max_pending} must be at least 1")
        self._max_message_bytes = max_message_bytes
        self.max_pending = max_pending
        self._allocate = allocate
        self._pending: dict[Identity, _Pending] = {}  # in the order of their first chunks
        self._given_up: list[Identity] = []
        self.dropped = 0
        self.pending_bytes = 0

    def __len__(self) -> int:
        """Number of incomplete messages."""
        return len(self._pending)

    def add(self, chunk: bytes | bytearray | memoryview) -> Assembled | None:
        """Take one chunk in; it is not kept.

        Returns:
            The message that this chunk completes, else None. A worker sends one message after the other: the first
            chunk of one gives up what is incomplete of those before it, and a complete one also those of earlier lives.

        Raises:
            MessageCorrupt: The chunk contradicts itself (it is ignored), or the other chunks of its message (all that
                was received of this message is given up).
            MessageTooLarge: The message is over `max_message_bytes`. Nothing was allocated.
        """
        header = peek(chunk)
        if header.total_bytes > self._max_message_bytes:
            raise MessageTooLarge(header.total_bytes, self._max_message_bytes)
        pending = self._pending.get(header.identity)
        if pending is None:
            pending = self._begin(header)
        elif (pending.count, pending.buffer.nbytes) != (header.count, header.total_bytes):
            self._drop(header.identity)
            raise MessageCorrupt(
                f"chunks of {header.identity} disagree: {pending.buffer.nbytes} bytes in {pending.count} chunks, "
                f"or {header.total_bytes} in {header.count}"
            )
        if pending.seen[header.index]:
            return None
        share = memoryview(chunk).cast("B")[PREFIX_BYTES:]
        pending.buffer[header.offset : header.offset + header.nbytes] = share
        pending.seen[header.index] = True
        pending.missing -= 1
        if pending.missing:
            return None
        self._forget(header.identity)
        self._give_up_before(header.identity, lives=True)
        return Assembled(identity=header.identity, buffer=pending.buffer)

    def give_up(self, worker: int, *, before_incarnation: int) -> None:
        """Give up what earlier lives of a worker left incomplete: they will send no more of it."""
        for identity in list(self._pending):
            if identity.worker == worker and identity.incarnation < before_incarnation:
                self._drop(identity)

    def take_given_up(self) -> list[Identity]:
        """Incomplete messages that were given up since the last call."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def _begin(self, header: ChunkHeader) -> _Pending:
        self._give_up_before(header.identity, lives=False)
        needed = header.total_bytes + header.count
        while self._pending and (
            len(self._pending) >= self.max_pending or self.pending_bytes + needed > 2 * self._max_message_bytes
        ):
            self._drop(next(iter(self._pending)))
        pending = _Pending(
            count=header.count,
            buffer=self._allocate(header.total_bytes),
            seen=np.zeros(header.count, np.bool_),
            missing=header.count,
        )
        self._pending[header.identity] = pending
        self.pending_bytes += pending.nbytes
        return pending

    def _give_up_before(self, later: Identity, *, lives: bool) -> None:
        for identity in list(self._pending):
            same_incarnation = identity.incarnation == later.incarnation and identity.sequence < later.sequence
            earlier_incarnation = lives and identity.incarnation < later.incarnation
            if identity.worker == later.worker and (same_incarnation or earlier_incarnation):
                self._drop(identity)

    def _drop(self, identity: Identity) -> None:
        self._forget(identity)
        self._given_up.append(identity)
        self.dropped += 1

    def _forget(self, identity: Identity) -> None:
        self.pending_bytes -= self._pending.pop(identity).nbytes


def _chunk_size(total_bytes: int, count: int) -> int:
    return -(-total_bytes // count)


def _pack(header: ChunkHeader, index: int) -> bytes:
    identity = header.identity
    fields = _FIELDS.pack(
        identity.worker, identity.incarnation, identity.sequence, index, header.count, header.total_bytes
    )
    return _LEAD.pack(_MAGIC, xxhash.xxh32_intdigest(fields)) + fields


def _chunks(encoded: Encoded, header: ChunkHeader) -> "Iterator[tuple[bytes | memoryview, ...]]":
    size = _chunk_size(header.total_bytes, header.count)
    parts = iter(encoded.parts)
    rest = memoryview(b"")
    for index in range(header.count):
        pieces: list[bytes | memoryview] = [_pack(header, index)]
        room = min(size, header.total_bytes - index * size)
        while room:
            if not rest.nbytes:
                rest = next(parts)
            piece, rest = rest[:room], rest[room:]
            pieces.append(piece)
            room -= piece.nbytes
        yield tuple(pieces)
