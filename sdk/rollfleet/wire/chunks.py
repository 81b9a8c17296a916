"""Code of both chunk formats: cut a message without copying it, and reassemble it in one buffer.

`batch_chunks` and `weight_chunks` put their own prefix before each piece. A message of `total_bytes` is cut into pieces
of `piece_bytes`; the last piece has the rest.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 20
"""Size of a chunk at most, even where the server takes larger messages."""

Received: TypeAlias = bytes | bytearray | memoryview
"""A message as it arrived."""

Chunk: TypeAlias = tuple[bytes | memoryview, ...]
"""A chunk to be sent: its prefix, then the parts of its piece in the sender's memory. Joined, they are the chunk."""

Allocate: TypeAlias = Callable[[int], NDArray[np.uint8]]
"""Returns uninitialised memory for a message of this many bytes, uint8."""


def piece_count(total_bytes: int, piece_bytes: int) -> int:
    """Return the number of pieces of a message."""
    return -(-total_bytes // piece_bytes)


def cut_pieces(parts: Iterable[memoryview], total_bytes: int, piece_bytes: int) -> Iterator[list[bytes | memoryview]]:
    """Cut a message, given as consecutive parts, into pieces: views of the parts, no copies.

    Each piece but the last has `piece_bytes`; all parts together have `total_bytes`.
    """
    remaining = iter(parts)
    part = memoryview(b"")
    for start in range(0, total_bytes, piece_bytes):
        views: list[bytes | memoryview] = []
        missing = min(piece_bytes, total_bytes - start)
        while missing:
            if not part.nbytes:
                part = next(remaining)
            view, part = part[:missing], part[missing:]
            views.append(view)
            missing -= view.nbytes
        yield views


class Reassembly:
    """The buffer of one incomplete message. Pieces arrive in any order, and each is copied once.

    Args:
        buffer: Memory for the whole message, uint8 `[total_bytes]`.
        piece_bytes: Size of each piece but the last.

    Attributes:
        buffer: The same; valid where pieces have been added.
        piece_bytes: The same.

    Example:
        >>> message = Reassembly(np.empty(5, np.uint8), piece_bytes=3)
        >>> message.add(1, memoryview(b"lo"))
        >>> message.missing()
        [0]
        >>> message.add(0, memoryview(b"hel"))
        >>> message.complete, message.buffer.tobytes()
        (True, b'hello')
    """

    __slots__ = ("_missing", "_received", "buffer", "piece_bytes")

    def __init__(self, buffer: NDArray[np.uint8], piece_bytes: int) -> None:
        self.buffer, self.piece_bytes = buffer, piece_bytes
        self._missing = piece_count(buffer.nbytes, piece_bytes)
        self._received = np.zeros(self._missing, np.bool_)  # zeros: the system maps a page only when it is touched

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
        start = index * self.piece_bytes
        self.buffer[start : start + piece.nbytes] = piece
        self._received[index] = True
        self._missing -= 1
