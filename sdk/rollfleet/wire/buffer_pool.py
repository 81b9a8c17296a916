"""Memory of batches, used again once nobody refers to it: of fresh memory the system has to fill in every page."""

import weakref
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.wire.codec import empty_buffer

SMALL_BYTES = 1 << 16  # what is smaller comes from memory that the process has anyway
WASTE = 2  # how many times larger than what is asked for a piece of memory may be


class BufferPool:
    """Lends memory, on one thread.

    Args:
        most_idle: Pieces that are kept for later.
        most_bytes: Of a piece that is kept; None: whatever it has.
    """

    def __init__(self, most_idle: int, *, most_bytes: int | None = None) -> None:
        self._idle: deque[NDArray[np.uint8]] = deque(maxlen=most_idle)
        self._most_bytes = most_bytes

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Uninitialised memory, uint8 `[nbytes]`, aligned as a message is. It comes back when nothing refers to it."""
        if self._most_bytes is not None and not SMALL_BYTES <= nbytes <= self._most_bytes:
            return empty_buffer(nbytes)
        whole = self._whole(nbytes)
        # Views of an array refer to the array that owns its memory, not to the one they were made from: so this one
        # is made from something that is no array.
        lent: NDArray[np.uint8] = np.frombuffer(whole.data, np.uint8, nbytes)
        weakref.finalize(lent, self._idle.append, whole).atexit = False
        return lent

    def empty_like(self, tensor: Tensor) -> Tensor:
        """As `torch.empty_like` of a contiguous CPU tensor."""
        if tensor.nbytes < SMALL_BYTES:
            return torch.empty_like(tensor)
        return torch.from_numpy(self.take(tensor.nbytes)).view(tensor.dtype).view(tensor.shape)

    def _whole(self, nbytes: int) -> NDArray[np.uint8]:
        for _ in range(len(self._idle)):
            whole = self._idle.popleft()
            if nbytes <= whole.nbytes <= WASTE * nbytes:
                return whole
            self._idle.append(whole)
        return empty_buffer(nbytes)
