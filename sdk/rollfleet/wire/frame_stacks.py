"""Stacks of images, each image once: where an observation is the last K images, all but one were in the one before.

A policy that is to see motion is given the last few images as one observation, along the first dimension
(`FrameStackObservation`, EnvPool) or the last (`VecFrameStack`). Sent as it is, each image travels K times. Folded, the
images lie in the order in which they were seen; a frame either begins with K new ones or goes on by one.

What is folded is compared bit by bit, frame by frame, and comes out as it went in. Observations that are no stacks are
known by their first frames.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.errors import MessageCorrupt

Array: TypeAlias = NDArray[Any]

MOST_IMAGES = 16
"""K is at most this: so many times what was received may be allocated for it."""

_LEAST_BYTES = 256  # of an image: less is not worth the trouble
_LOOK_AT = 8  # frames that show whether there are stacks at all
_WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class Folded(NamedTuple):
    """Observations [envs, T, ...] that are stacks.

    Attributes:
        images: [n, ...], row by row, each in the order in which it was seen.
        begins: bool [envs, T]: all K images of this frame are new; of another, the last one is.
        form: int64 [2]: K, and whether they lie along the last dimension (1) or the first (0).
    """

    images: Tensor
    begins: Tensor
    form: Tensor


def fold(observations: Tensor) -> Folded | None:
    """Each image once; None: they are no stacks, or hardly anything would be saved.

    Args:
        observations: [envs, T, ...] on the CPU, of any dtype.
    """
    if observations.ndim < 4 or observations.dtype.itemsize > 8:
        return None
    array = _bits(observations)
    for last in (False, True):
        stacks = _Stacks(array, last=last)
        if stacks.possible and stacks.goes_on(0, _LOOK_AT).any():
            begins = np.ones(array.shape[:2], np.bool_)
            for row in range(len(array)):
                begins[row, 1:] = ~stacks.goes_on(row)
            if 2 * _count(begins, stacks.count) < begins.size * stacks.count:
                images = torch.from_numpy(stacks.images(begins)).view(observations.dtype)
                return Folded(images, torch.from_numpy(begins), torch.tensor([stacks.count, int(last)]))
    return None


def unfold(folded: Folded) -> Tensor:
    """The inverse, in memory of its own.

    Raises:
        MessageCorrupt: The parts do not fit together. All is checked before use: a hostile peer may have written them.
    """
    images, begins, form = folded
    if form.shape != (2,) or form.dtype is not torch.int64 or begins.ndim != 2 or begins.dtype is not torch.bool:
        raise MessageCorrupt(f"folded observations of form {form.dtype} {tuple(form.shape)}")
    count, last = form.tolist()
    if not (2 <= count <= MOST_IMAGES and last in (0, 1) and begins.numel() and begins[:, 0].all()):
        raise MessageCorrupt(f"folded observations of {count} images, in {tuple(begins.shape)} frames")
    if images.ndim < 2 or images.dtype.itemsize > 8 or len(images) != _count(begins.numpy(), count):
        raise MessageCorrupt(f"folded observations of {tuple(images.shape)}, {count} each; not what their frames have")
    seen, newest = _bits(images), _newest(begins.numpy(), count)
    shape = (*seen.shape[1:], count) if last else (count, *seen.shape[1:])
    frames = np.empty((newest.size, *shape), seen.dtype)
    if last and (word := _WORDS.get(count * seen.itemsize)):
        _shift_in(frames.view(word)[..., 0], seen, newest, begins.numpy().ravel(), count)
    else:
        stacked = np.moveaxis(frames, -1, 1) if last else frames
        for frame, at in zip(stacked, newest.tolist(), strict=True):
            frame[...] = seen[at + 1 - count : at + 1]
    return torch.from_numpy(frames).view(images.dtype).view(*begins.shape, *shape)


class _Stacks:
    """Observations, taken for stacks along their first or last dimension."""

    def __init__(self, array: Array, *, last: bool) -> None:
        self._array, self._last = array, last
        self.count: int = array.shape[-1 if last else 2]
        self._planes = np.moveaxis(array, -1, 2) if last else array
        nbytes = self._planes[:1, :1, :1].nbytes
        self.possible = 2 <= self.count <= MOST_IMAGES and nbytes >= _LEAST_BYTES and array.shape[1] > 1

    def goes_on(self, row: int, frames: int | None = None) -> NDArray[np.bool_]:
        """Of each frame but the first: whether all its images but the newest were in the frame before."""
        itemsize, frames = self._array.itemsize, frames or self._array.shape[1]
        if self._last and (word := _WORDS.get(self.count * itemsize)):
            # The images' pixels lie side by side: they are one number, of which the oldest pixel is the lowest part.
            words = self._array[row, :frames].view(word)
            low = word((1 << 8 * itemsize * (self.count - 1)) - 1)
            same = (words[1:] & low) == (words[:-1] >> word(8 * itemsize))
        else:
            planes = self._planes[row, :frames]
            same = planes[1:, :-1] == planes[:-1, 1:]
        goes_on: NDArray[np.bool_] = same.reshape(len(same), -1).all(-1)
        return goes_on

    def images(self, begins: NDArray[np.bool_]) -> Array:
        """[n, ...]; see `Folded`."""
        planes, newest = self._planes.reshape(-1, *self._planes.shape[2:]), _newest(begins, self.count)
        images = np.empty((_count(begins, self.count), *planes.shape[2:]), planes.dtype)
        images[newest] = planes[:, -1]
        for at in np.flatnonzero(begins).tolist():
            end = newest[at]
            images[end + 1 - self.count : end] = planes[at, :-1]
        return images


def _shift_in(words: Array, images: Array, newest: Array, begins: Array, count: int) -> None:
    """As `_Stacks.goes_on` sees them: a frame is the one before, shifted by an image, with the newest on top."""
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
    """How many images there are."""
    return begins.size + (count - 1) * int(np.count_nonzero(begins))


def _newest(begins: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """int64 [envs * T]: where each frame's newest image lies."""
    return np.cumsum(np.where(begins.ravel(), count, 1)) - 1


def _bits(tensor: Tensor) -> Array:
    """Its elements as unsigned integers: numpy has no bfloat16, and numbers that are equal may have other bits."""
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    array: Array = np.ascontiguousarray(tensor.view(signed).numpy())
    return array.view(f"u{array.itemsize}")
