"""Batches cut into trajectories."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rollfleet.data.batch import MASK, NO_TRAJECTORY, TRAJECTORY
from rollfleet.data.tensor_memory import indexable

if TYPE_CHECKING:
    from tensordict import TensorDict


def split_trajectories(batch: "TensorDict") -> "TensorDict":
    """Rearrange a batch into one trajectory a row, padded.

    A trajectory is a sequence of frames under one id within a row of the batch. It may be a piece of an episode that
    began earlier or ends later. As in TorchRL, rows are as long as the longest trajectory.

    Args:
        batch: TensorDict `[..., T]`, from a collector.

    Returns:
        TensorDict `[trajectories, T_max]` with new memory. `("collector", "mask")` is True for frames. Padding is zero,
        with the trajectory id -1.

    Example:
        >>> from rollfleet import Collector, split_trajectories
        >>> with Collector("CartPole-v1", num_envs=2, frames_per_batch=64) as collector:
        ...     split = split_trajectories(next(collector))
        >>> int(split["collector", "mask"].sum())
        64
    """
    from tensordict import TensorDict

    flat, starts, lengths = _cut(batch)
    rows, longest = len(starts), int(lengths.max())
    row = torch.repeat_interleave(torch.arange(rows, device=starts.device), lengths)
    column = torch.arange(len(row), device=starts.device) - torch.repeat_interleave(
        lengths.cumsum(0) - lengths, lengths
    )
    taken = torch.repeat_interleave(starts, lengths) + column

    def spread(value: Tensor) -> Tensor:
        wide = torch.zeros((rows, longest, *value.shape[1:]), dtype=value.dtype, device=value.device)
        indexable(wide)[row, column] = indexable(value)[taken]
        return wide

    split = flat.apply(spread, batch_size=[rows, longest])
    mask = torch.zeros((rows, longest), dtype=torch.bool, device=starts.device)
    mask[row, column] = True
    split.set(MASK, mask)
    split.get(TRAJECTORY)[~mask] = NO_TRAJECTORY
    split.names = [None, "time"]
    assert isinstance(split, TensorDict)
    return split


def trajectories_of(batch: "TensorDict") -> "list[TensorDict]":
    """Return the trajectories of a batch `[..., T]`, each `[frames]`, unpadded; views if it is contiguous."""
    flat, starts, lengths = _cut(batch)
    return [flat[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]


def frames_of(batch: "TensorDict") -> "TensorDict":
    """Return the frames of a batch `[...]` in a row, `[frames]`, without padding and mask."""
    flat = batch.reshape(-1)
    if MASK in flat.keys(True):
        flat = flat[flat.get(MASK)].exclude(MASK)
    return flat


def _cut(batch: "TensorDict") -> "tuple[TensorDict, Tensor, Tensor]":
    """Return all frames in one dimension, and the starts and lengths of its trajectories."""
    flat = batch.reshape(-1)
    ids = batch.get(TRAJECTORY).reshape(-1, batch.shape[-1])
    begins = torch.ones_like(ids, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = begins.reshape(-1).nonzero().squeeze(1)
    ends = torch.cat([starts[1:], starts.new_tensor([ids.numel()])])
    real = ids.reshape(-1)[starts] >= 0  # the others are padding
    return flat, starts[real], (ends - starts)[real]
