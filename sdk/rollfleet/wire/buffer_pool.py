"""Memory of batches, reused once no array refers to it: of fresh memory, the system must clear every page."""

import math
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.tensor_memory import fresh
from rollfleet.wire.codec import empty_buffer

SMALL_BYTES = 1 << 16  # smaller buffers come from memory that the process already has
WASTE = 2  # a buffer may be this many times larger than the request


class BufferPool:
    """Lends memory to one thread at a time.

    Args:
        most_idle: Number of idle buffers to keep.
        most_bytes: Size of a kept buffer at most; None: no bound.

    Example:
        >>> pool = BufferPool(most_idle=2)
        >>> buffer = pool.take(1 << 20)
        >>> address = buffer.ctypes.data
        >>> del buffer  # the memory returns to the pool
        >>> pool.take(1 << 20).ctypes.data == address
        True
    """

    def __init__(self, most_idle: int, *, most_bytes: int | None = None) -> None:
        self._idle: deque[NDArray[np.uint8]] = deque(maxlen=most_idle)
        self._most_bytes = most_bytes

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Lend uninitialised memory, uint8 `[nbytes]`, aligned for a message. It returns when nothing refers to it."""
        if self._most_bytes is not None and not SMALL_BYTES <= nbytes <= self._most_bytes:
            return empty_buffer(nbytes)
        whole = self._whole(nbytes)
        # A view refers to the array that owns its memory, not to the array that it was made from. So this array is made
        # from a buffer that is not an array.
        lent: NDArray[np.uint8] = np.frombuffer(whole.data, np.uint8, nbytes)
        weakref.finalize(lent, self._idle.append, whole).atexit = False
        return lent

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate a tensor on the CPU, in memory of the pool."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < SMALL_BYTES:
            return fresh(shape, dtype)
        return torch.from_numpy(self.take(nbytes)).view(dtype).view(shape)

    def _whole(self, nbytes: int) -> NDArray[np.uint8]:
        for _ in range(len(self._idle)):
            whole = self._idle.popleft()
            if nbytes <= whole.nbytes <= WASTE * nbytes:
                return whole
            self._idle.append(whole)
        if self._idle:
            self._idle.popleft()  # sizes have changed: idle memory must not grow with their number
        return empty_buffer(nbytes)
