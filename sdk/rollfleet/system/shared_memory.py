"""Memory that processes share. It has no name, so the system frees it when the last process that holds it ends."""

import mmap
import os
import tempfile

import numpy as np
from numpy.typing import NDArray

from rollfleet.errors import MessageCorrupt
from rollfleet.system.copies import refuse_copy

GRANULARITY = mmap.ALLOCATIONGRANULARITY
"""Bytes. Regions begin and end at multiples of it."""


class SharedMemory:
    """A file without a name that grows, and whose regions can be mapped. On Linux it lies in memory.

    One process creates it and passes its descriptor to others. Only one of them all may grow it.

    Example:
        >>> memory = SharedMemory.create()
        >>> start, capacity = memory.grow(10)
        >>> memory.map(start, 10).nbytes == capacity
        True

    Args:
        descriptor: The file's descriptor; closed with the shared memory.
    """

    __reduce__ = refuse_copy

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def create(cls) -> "SharedMemory":
        """Create an empty file."""
        if hasattr(os, "memfd_create"):  # counts as the processes' own memory: the limit of /dev/shm does not apply
            return cls(os.memfd_create("rollfleet"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def grow(self, nbytes: int) -> tuple[int, int]:
        """Add a region of `nbytes` or a little more, filled with zeros. Returns its start and its size in bytes."""
        start = os.fstat(self._descriptor).st_size
        capacity = _whole(nbytes)
        os.ftruncate(self._descriptor, start + capacity)
        return start, capacity

    def map(self, start: int, nbytes: int) -> NDArray[np.uint8]:
        """Map a region of `nbytes`, as uint8 `[capacity]`. It stays mapped while anything refers to it.

        Raises:
            MessageCorrupt: The region does not exist; touching it would end this process.
        """
        capacity = _whole(nbytes)
        if start % GRANULARITY or start + capacity > os.fstat(self._descriptor).st_size:
            raise MessageCorrupt(f"there is no region of {capacity} bytes at {start}")
        return np.frombuffer(mmap.mmap(self._descriptor, capacity, offset=start), np.uint8)

    def __del__(self) -> None:
        """Close the descriptor with the last reference to this object."""
        self.close()

    def close(self) -> None:
        """Close the descriptor. Mapped regions stay mapped. Closing twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _whole(nbytes: int) -> int:
    return -(-max(nbytes, 1) // GRANULARITY) * GRANULARITY
