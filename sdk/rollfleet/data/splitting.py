"""Cuts batches into trajectories."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rollfleet.data.batch import MASK, NO_TRAJECTORY, TRAJECTORY, indexable

if TYPE_CHECKING:
    from tensordict import TensorDict


def split_trajectories(batch: "TensorDict") -> "TensorDict":
    """A batch as one trajectory a row, padded.

    A trajectory is what follows on itself under one id within a row of the batch; it may be a piece of an episode that
    began before or ends later. As in TorchRL, rows are as long as the longest.

    Args:
        batch: TensorDict `[..., T]`, from a collector.

    Returns:
        TensorDict `[trajectories, T_max]`: zeros and trajectory id -1 where there is nothing, `("collector", "mask")`
        bool, True where there is something. Its memory is new.
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
    """The trajectories of a batch `[..., T]`, each `[frames]`, without padding. Views, where it is contiguous."""
    flat, starts, lengths = _cut(batch)
    return [flat[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]


def frames_of(batch: "TensorDict") -> "TensorDict":
    """The frames of a batch `[...]` in a row, `[frames]`: what is padding, and the mask that says so, left out."""
    flat = batch.reshape(-1)
    if MASK in flat.keys(True):
        flat = flat[flat.get(MASK)].exclude(MASK)
    return flat


def _cut(batch: "TensorDict") -> "tuple[TensorDict, Tensor, Tensor]":
    """All frames in one dimension, and where the pieces that hold something start, and how long they are."""
    flat = batch.reshape(-1)
    ids = batch.get(TRAJECTORY).reshape(-1, batch.shape[-1])
    begins = torch.ones_like(ids, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = begins.reshape(-1).nonzero().squeeze(1)
    ends = torch.cat([starts[1:], starts.new_tensor([ids.numel()])])
    something = ids.reshape(-1)[starts] >= 0
    return flat, starts[something], (ends - starts)[something]
