"""Observations of any supported space, encoded for a linear layer: float32 [..., inputs]."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from gymnasium.spaces import Discrete, MultiDiscrete
from torch import Tensor

from rollfleet.envs.space_tree import ArraySpace, Space, SpaceTree, array_shape


class ObservationEncoder:
    """Flattens observations and concatenates their leaves.

    uint8 (images) is divided by 255; Discrete and MultiDiscrete become one-hot.

    Attributes:
        inputs: The number of values for one observation.
    """

    def __init__(self, space: Space) -> None:
        """Take a `supported` space."""
        self._tree = SpaceTree(space)
        encoders = [_encoder(leaf) for leaf in self._tree.leaves.values()]
        self._encoders = [encode for _, encode in encoders]
        self.inputs = sum(width for width, _ in encoders)

    def __call__(self, observation: Any, leading: int) -> Tensor:
        """Encode an observation with `leading` dimensions before its own; a Dict may be a larger TensorDict."""
        if self._tree.plain:
            return self._encoders[0](observation, leading)
        leaves = self._tree.split(observation)
        parts = [encode(leaf, leading) for encode, leaf in zip(self._encoders, leaves, strict=True)]
        return torch.cat(parts, -1)


def _encoder(space: ArraySpace) -> tuple[int, Callable[[Tensor, int], Tensor]]:
    """Return the number of values of a leaf, and the function that encodes it."""
    if isinstance(space, Discrete):
        start, n = int(space.start), int(space.n)
        return n, lambda observation, leading: _one_hot(observation, start, n).float()
    if isinstance(space, MultiDiscrete):
        sizes, starts = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()

        def encode(observation: Tensor, leading: int) -> Tensor:
            columns = observation.long().reshape(*observation.shape[:leading], -1).unbind(-1)
            each = zip(columns, starts, sizes, strict=True)
            return torch.cat([_one_hot(*one) for one in each], -1).float()

        return sum(sizes), encode
    return prod(array_shape(space)), _flattened


def _one_hot(values: Tensor, start: int, n: int) -> Tensor:
    """Return options one-hot. Padding, 0, counts as the first option of a space without 0."""
    options = values - start
    return F.one_hot(options if start <= 0 < start + n else options.masked_fill(values == 0, 0), n)


def _flattened(observation: Tensor, leading: int) -> Tensor:
    if observation.ndim != leading + 1:
        observation = observation.reshape(*observation.shape[:leading], -1)
    if observation.dtype is torch.float32:
        return observation
    return observation.float() / 255.0 if observation.dtype is torch.uint8 else observation.float()
