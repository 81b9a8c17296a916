"""Memory that processes share and that nobody can leave behind: it has no name, and goes with the last who holds it."""

import mmap
import os
import tempfile

import numpy as np
from numpy.typing import NDArray

from rollfleet.errors import MessageCorrupt

GRANULARITY = mmap.ALLOCATIONGRANULARITY
"""Bytes. Regions begin and end at multiples of it."""


class SharedMemory:
    """A file without a name, in memory where the system has such files, that grows and whose regions can be mapped.

    One process makes it and hands its descriptor to others; one of them all may let it grow.

    Args:
        descriptor: Of the file; closed with the shared memory.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def create(cls) -> "SharedMemory":
        """An empty one."""
        if hasattr(os, "memfd_create"):  # counts as the processes' own memory, whatever /dev/shm is limited to
            return cls(os.memfd_create("rollfleet"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def grow(self, nbytes: int) -> tuple[int, int]:
        """A new region: where it begins, and its size, which is `nbytes` or a little more. Its memory is zero."""
        start = os.fstat(self._descriptor).st_size
        capacity = _whole(nbytes)
        os.ftruncate(self._descriptor, start + capacity)
        return start, capacity

    def stretch(self, nbytes: int) -> None:
        """Make it at least so long. What is new is zero."""
        if os.fstat(self._descriptor).st_size < nbytes:
            os.ftruncate(self._descriptor, _whole(nbytes))

    def map(self, start: int, nbytes: int) -> NDArray[np.uint8]:
        """Memory of the region of so many bytes, uint8 `[capacity]`; it stays mapped while anything refers to it.

        Raises:
            MessageCorrupt: There is no such region; touching it would end this process.
        """
        capacity = _whole(nbytes)
        if start % GRANULARITY or start + capacity > os.fstat(self._descriptor).st_size:
            raise MessageCorrupt(f"there is no region of {capacity} bytes at {start}")
        return np.frombuffer(mmap.mmap(self._descriptor, capacity, offset=start), np.uint8)

    def __del__(self) -> None:
        """Give it up with the last reference to it."""
        self.close()

    def close(self) -> None:
        """Give up the descriptor; what is mapped stays mapped. Again is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _whole(nbytes: int) -> int:
    return -(-max(nbytes, 1) // GRANULARITY) * GRANULARITY
