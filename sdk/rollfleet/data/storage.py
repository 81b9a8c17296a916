"""Preallocated memory of fragments: torch tensors for readers, numpy views of them for the loop that writes."""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from rollfleet.data.batch import REWARD, STEP_COUNT, TERMINATED, TRAJECTORY, TRUNCATED, Key
from rollfleet.data.tensor_memory import Array, as_array

Layout: TypeAlias = Mapping[Key, tuple[torch.dtype, tuple[int, ...]]]

_FIXED: Layout = {
    REWARD: (torch.float32, (1,)),
    TERMINATED: (torch.bool, (1,)),
    TRUNCATED: (torch.bool, (1,)),
    TRAJECTORY: (torch.int64, ()),
}
_SCALARS = (REWARD, TERMINATED, TRUNCATED, STEP_COUNT)


class Storage:
    """Memory for all values of a fragment, [envs, frames].

    Attributes:
        tensors: By key, contiguous, [envs, frames, ...].
        arrays: Views of the same memory. Flags, reward and step_count lack their last dimension of 1; bfloat16 is
            int16.
    """

    def __init__(self, layout: Layout, envs: int, frames: int) -> None:
        """Allocate the values that every fragment has, and those in `layout`."""
        # Policies run in inference mode; memory that is allocated there could not be trained on.
        with torch.inference_mode(False):
            self.tensors: dict[Key, Tensor] = {
                key: torch.zeros((envs, frames, *shape), dtype=dtype, device="cpu")
                for key, (dtype, shape) in {**layout, **_FIXED}.items()
            }
        self.arrays: dict[Key, Array] = {
            key: as_array(tensor)[..., 0] if key in _SCALARS else as_array(tensor)
            for key, tensor in self.tensors.items()
        }
