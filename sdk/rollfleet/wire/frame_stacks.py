"""Stacks of images, each image sent once.

A policy that must see motion gets the last K images as one observation, stacked along the first dimension
(`FrameStackObservation`, EnvPool) or the last (`VecFrameStack`). All images but one were in the observation before:
unfolded, each image travels K times. Folded, the images lie in the order of their frames; each frame either begins with
K new images or adds one.

Folding compares bit by bit, frame by frame, and is lossless. The first frames show whether observations are stacks.
"""

from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.errors import MessageCorrupt
from rollfleet.wire.codec import Allocate, empty_buffer

Array: TypeAlias = NDArray[Any]

MOST_IMAGES = 16
"""K at most."""

_LEAST_BYTES = 256  # of an image: folding smaller ones saves too little
_PROBE_FRAMES = 8  # frames that show whether observations are stacks
_WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class Folded(NamedTuple):
    """Observations [envs, T, ...] that are stacks of K images.

    Attributes:
        images: [n, ...], environment by environment, in the order of their frames.
        begins: bool [envs, T]: whether all K images of a frame are new; otherwise only the last one is.
        form: int64 [2]: K, and whether the images lie along the last dimension (1) or the first (0).
    """

    images: Tensor
    begins: Tensor
    form: Tensor


def fold(observations: Tensor) -> Folded | None:
    """Fold stacks of images. Returns None if they are no stacks, or if folding saves less than half.

    Args:
        observations: [envs, T, ...] on the CPU, of any dtype.
    """
    if observations.ndim < 4 or observations.dtype.itemsize > 8:
        return None
    array = _bits(observations)
    for last in (False, True):
        stacks = _Stacks(array, last=last)
        if stacks.possible and stacks.continues(0, _PROBE_FRAMES).any():
            begins = np.ones(array.shape[:2], np.bool_)
            for row in range(len(array)):
                begins[row, 1:] = ~stacks.continues(row)
            if 2 * _count(begins, stacks.count) < begins.size * stacks.count:
                images = torch.from_numpy(stacks.images(begins)).view(observations.dtype)
                return Folded(images, torch.from_numpy(begins), torch.tensor([stacks.count, int(last)], device="cpu"))
    return None


def unfold(folded: Folded, allocate: Allocate = empty_buffer) -> Tensor:
    """Restore observations, in memory of `allocate`.

    Raises:
        MessageCorrupt: The parts do not fit together. Each is checked before its use: a peer may be hostile.
    """
    images, begins, form = folded
    if form.shape != (2,) or form.dtype is not torch.int64 or begins.ndim != 2 or begins.dtype is not torch.bool:
        raise MessageCorrupt(f"folded observations of form {form.dtype} {tuple(form.shape)}")
    count, last = form.tolist()
    if not (2 <= count <= MOST_IMAGES and last in (0, 1) and begins.numel() and begins[:, 0].all()):
        raise MessageCorrupt(f"folded observations of {count} images, in {tuple(begins.shape)} frames")
    if images.ndim < 2 or images.dtype.itemsize > 8 or len(images) != _count(begins.numpy(), count):
        raise MessageCorrupt(
            f"folded observations of {tuple(images.shape)}, {count} each: the number does not fit their frames"
        )
    seen, newest = _bits(images), _newest(begins.numpy(), count)
    shape = (*seen.shape[1:], count) if last else (count, *seen.shape[1:])
    frames = allocate(newest.size * count * seen[:1].nbytes).view(seen.dtype).reshape(newest.size, *shape)
    if last and (word := _WORDS.get(count * seen.itemsize)):
        _shift_in(frames.view(word)[..., 0], seen, newest, begins.numpy().ravel(), count)
    else:
        stacked = np.moveaxis(frames, -1, 1) if last else frames
        stacks = np.moveaxis(sliding_window_view(seen, count, axis=0), -1, 1)
        starts = np.flatnonzero(begins.numpy()).tolist()
        for start, end in pairwise([*starts, len(stacked)]):  # of frames that each add one image
            first = newest[start] + 1 - count
            stacked[start:end] = stacks[first : first + end - start]
    return torch.from_numpy(frames).view(images.dtype).view(*begins.shape, *shape)


class _Stacks:
    """Observations, read as stacks along their first or last dimension."""

    def __init__(self, array: Array, *, last: bool) -> None:
        self._array, self._last = array, last
        self.count: int = array.shape[-1 if last else 2]
        self._planes = np.moveaxis(array, -1, 2) if last else array
        nbytes = self._planes[:1, :1, :1].nbytes
        self.possible = 2 <= self.count <= MOST_IMAGES and nbytes >= _LEAST_BYTES and array.shape[1] > 1

    def continues(self, row: int, frames: int | None = None) -> NDArray[np.bool_]:
        """Return, for each frame but the first, whether all its images but the newest were in the frame before."""
        itemsize, frames = self._array.itemsize, frames or self._array.shape[1]
        if self._last and (word := _WORDS.get(self.count * itemsize)):
            # The images' pixels lie side by side: together they are one number, with the oldest pixel as lowest part.
            words = self._array[row, :frames].view(word)
            low = word((1 << 8 * itemsize * (self.count - 1)) - 1)
            same = (words[1:] & low) == (words[:-1] >> word(8 * itemsize))
        else:
            planes = self._planes[row, :frames]
            same = planes[1:, :-1] == planes[:-1, 1:]
        continues: NDArray[np.bool_] = same.reshape(len(same), -1).all(-1)
        return continues

    def images(self, begins: NDArray[np.bool_]) -> Array:
        """Return the images [n, ...]; see `Folded`."""
        planes, newest = self._planes.reshape(-1, *self._planes.shape[2:]), _newest(begins, self.count)
        images = np.empty((_count(begins, self.count), *planes.shape[2:]), planes.dtype)
        images[newest] = planes[:, -1]
        for at in np.flatnonzero(begins).tolist():
            end = newest[at]
            images[end + 1 - self.count : end] = planes[at, :-1]
        return images


def _shift_in(words: Array, images: Array, newest: Array, begins: Array, count: int) -> None:
    """Build frames as numbers: a frame is the one before, shifted by an image, with the newest image on top."""
    bits = 8 * images.itemsize
    top = np.empty(words.shape[1:], words.dtype)
    for i, at in enumerate(newest.tolist()):
        if begins[i]:
            words[i] = 0
            for k in range(count):
                np.left_shift(images[at + 1 - count + k], bits * k, out=top, dtype=words.dtype, casting="unsafe")
                words[i] |= top
        else:
            np.right_shift(words[i - 1], bits, out=words[i])
            np.left_shift(images[at], bits * (count - 1), out=top, dtype=words.dtype, casting="unsafe")
            words[i] |= top


def _count(begins: NDArray[np.bool_], count: int) -> int:
    """Return the number of images."""
    return begins.size + (count - 1) * int(np.count_nonzero(begins))


def _newest(begins: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """Return the index of each frame's newest image, int64 [envs * T]."""
    return np.cumsum(np.where(begins.ravel(), count, 1)) - 1


def _bits(tensor: Tensor) -> Array:
    """View elements as unsigned integers: numpy has no bfloat16, and equal numbers may differ in their bits."""
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    array: Array = np.ascontiguousarray(tensor.view(signed).numpy())
    return array.view(f"u{array.itemsize}")
