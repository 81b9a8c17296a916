"""One message <-> chunks that fit under the server's `max_payload`: the format of batches and of weights.

One chunk, all numbers little-endian:

```
offset  bytes
0       4      magic b"RLF1", whose last byte is the number of the format
4       4      u32  xxh32 of the 32 bytes that follow
8       16     key of the message; see `batch_chunks` and `weight_chunks`
24      4      u32  index of this chunk
28      4      u32  count of chunks
32      8      u64  total bytes of the message
40             the chunk's piece of the message
```

A message of `total` bytes in `count` chunks has `size = ceil(total / count)` bytes in every chunk but the last, which
has the rest (at least one byte): chunk `index` holds the bytes from `index * size` on. The message's own checksum
covers the pieces. The checksum here keeps a flipped bit from moving a chunk to another message.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollfleet.errors import MessageCorrupt

CHUNK_BYTES = 1 << 20
"""Size of a chunk at most, even where the server takes larger messages."""

_MAGIC = b"RLF1"
_LEAD = struct.Struct("<4sI")
_FIELDS = struct.Struct("<16sIIQ")

PREFIX_BYTES = _LEAD.size + _FIELDS.size
"""Size of a chunk's prefix, in bytes."""

Received: TypeAlias = bytes | bytearray | memoryview
"""A message as it arrived."""

Chunk: TypeAlias = tuple[bytes | memoryview, ...]
"""A chunk to be sent: its prefix, then the parts of its piece in the sender's memory. Joined, they are the chunk."""

Allocate: TypeAlias = Callable[[int], NDArray[np.uint8]]
"""Returns uninitialised memory for a message of this many bytes, uint8."""


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


def chunk_count(total_bytes: int, max_chunk_bytes: int) -> int:
    """Return the number of chunks of a message, of at most `max_chunk_bytes` each, prefix included."""
    return -(-total_bytes // (max_chunk_bytes - PREFIX_BYTES))


def cut_message(key: bytes, parts: Iterable[memoryview], total_bytes: int, count: int) -> Iterator[Chunk]:
    """Cut a message, given as consecutive parts of `total_bytes` together, into `count` chunks of `chunk_count`.

    The chunks are views: the memory of the parts must not change until the chunks are sent.
    """
    remaining = iter(parts)
    part = memoryview(b"")
    for index in range(count):
        header = ChunkHeader(key=key, index=index, count=count, total_bytes=total_bytes)
        fields = _FIELDS.pack(key, index, count, total_bytes)
        views: list[bytes | memoryview] = [_LEAD.pack(_MAGIC, xxhash.xxh32_intdigest(fields)) + fields]
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
    magic, checksum = _LEAD.unpack_from(chunk)
    if magic[:3] != _MAGIC[:3]:
        raise MessageCorrupt(f"not a chunk of rollfleet: it begins with {magic!r} instead of {_MAGIC!r}")
    if magic != _MAGIC:
        raise MessageCorrupt(
            f"a chunk of format {magic!r}, and this rollfleet reads {_MAGIC!r}: install one version on both sides"
        )
    if xxhash.xxh32_intdigest(memoryview(chunk).cast("B")[_LEAD.size : PREFIX_BYTES]) != checksum:
        raise MessageCorrupt("the chunk's prefix was changed on the way: its checksum is wrong")
    key, index, count, total_bytes = _FIELDS.unpack_from(chunk, _LEAD.size)
    if index >= count:
        raise MessageCorrupt(f"chunk {index} of {count} chunks")
    header = ChunkHeader(key=key, index=index, count=count, total_bytes=total_bytes)
    if (count - 1) * header.piece_bytes >= total_bytes:
        raise MessageCorrupt(f"{total_bytes} bytes cannot be in {count} chunks")
    if nbytes != PREFIX_BYTES + header.nbytes:
        raise MessageCorrupt(f"chunk {index} of {count} has {nbytes - PREFIX_BYTES} bytes instead of {header.nbytes}")
    return header


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
        >>> message.missing()
        [0]
        >>> message.add(0, memoryview(b"hel"))
        >>> message.complete, message.buffer.tobytes()
        (True, b'hello')
    """

    __slots__ = ("_missing", "_piece_bytes", "_received", "buffer")

    def __init__(self, buffer: NDArray[np.uint8], count: int) -> None:
        self.buffer, self._missing, self._piece_bytes = buffer, count, -(-buffer.nbytes // count)
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

    def missing(self) -> list[int]:
        """Return the indices of the missing pieces."""
        indices: list[int] = np.flatnonzero(~self._received).tolist()
        return indices

    def add(self, index: int, piece: memoryview) -> None:
        """Copy a piece to its offset. A piece that was added before is ignored."""
        if self._received[index]:
            return
        start = index * self._piece_bytes
        self.buffer[start : start + piece.nbytes] = piece
        self._received[index] = True
        self._missing -= 1
