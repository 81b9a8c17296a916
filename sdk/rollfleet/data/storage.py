"""Preallocated memory of fragments: torch tensors for the outside, numpy views of them for the loop that fills them."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.batch import REWARD, STEP_COUNT, TERMINATED, TRAJECTORY, TRUNCATED, Key

Array: TypeAlias = NDArray[Any]
Layout: TypeAlias = Mapping[Key, tuple[torch.dtype, tuple[int, ...]]]

_FIXED: Layout = {
    REWARD: (torch.float32, (1,)),
    TERMINATED: (torch.bool, (1,)),
    TRUNCATED: (torch.bool, (1,)),
    TRAJECTORY: (torch.int64, ()),
}
_OF_ONE = (REWARD, TERMINATED, TRUNCATED, STEP_COUNT)


class Storage:
    """Memory for [envs, frames] of everything that a fragment has.

    Attributes:
        tensors: By key, contiguous, [envs, frames, ...].
        arrays: Views of the same memory; flags, reward and step_count without their last dimension of 1; bfloat16 as
            int16.
    """

    def __init__(self, layout: Layout, envs: int, frames: int) -> None:
        """Allocate for what every fragment has, and for what is in `layout`."""
        # Policies run in inference mode, and what is allocated there could not be trained on.
        with torch.inference_mode(False):
            self.tensors: dict[Key, Tensor] = {
                key: torch.zeros((envs, frames, *shape), dtype=dtype)
                for key, (dtype, shape) in {**layout, **_FIXED}.items()
            }
        self.arrays: dict[Key, Array] = {
            key: as_array(tensor)[..., 0] if key in _OF_ONE else as_array(tensor)
            for key, tensor in self.tensors.items()
        }


def as_array(tensor: Tensor) -> Array:
    """A view of a CPU tensor's memory, or a copy of another's; bfloat16, which numpy has not, as int16."""
    array: Array = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy(force=True)
    return array
