"""Batches cut into trajectories."""

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from rollfleet.arguments import shown
from rollfleet.data.batch import MASK, NO_TRAJECTORY
from rollfleet.data.tensor_memory import indexable
from rollfleet.errors import JobInvalid

if TYPE_CHECKING:
    from tensordict import TensorDict

NestedKey: TypeAlias = str | tuple[str, ...]


def split_trajectories(
    batch: "TensorDict",
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey | None = None,
    as_nested: bool | torch.layout = False,
) -> "TensorDict":
    """Rearrange a batch into one trajectory a row, padded.

    A trajectory is a sequence of frames under one id within a row of the batch. It may be a piece of an episode that
    began earlier or ends later. As in TorchRL, rows are as long as the longest trajectory.

    Args:
        batch: TensorDict `[..., T]`, from a collector or another source.
        prefix: The key above `traj_ids` and `mask`; `()`: they are at the root. None: "collector" if the batch has it.
        trajectory_key: The key of the ids, int `[..., T]`. None: `(prefix, "traj_ids")`. `mask` is beside it.
        done_key: The key in `next` of the flags that end a trajectory, bool `[..., T]` or `[..., T, 1]`, for a batch
            without ids. None: "done".
        as_nested: Return nested tensors, which need no padding, in this layout; True: `torch.strided`.

    Returns:
        TensorDict `[trajectories, T_max]` with new memory. `mask` is True for frames. Padding is zero, with the
        trajectory id -1. A batch without ids gets them: 0, 1, 2, ... A batch without frames has no trajectories:
        `[0, 0]`. With `as_nested`: `[trajectories, -1]`, with `torch.jagged` `[trajectories]`, without a mask.

    Raises:
        JobInvalid: The batch is none, or has neither ids nor flags under these keys.

    Example:
        >>> from rollfleet import Collector, split_trajectories
        >>> with Collector("CartPole-v1", num_envs=2, frames_per_batch=64) as collector:
        ...     split = split_trajectories(next(collector))
        >>> int(split["collector", "mask"].sum())
        64
    """
    from tensordict import TensorDict, TensorDictBase

    if not isinstance(batch, TensorDictBase):
        raise JobInvalid(f"batch: expected a TensorDict [..., T], got {shown(batch)}")
    if not isinstance(as_nested, bool | torch.layout):
        raise JobInvalid(f"as_nested: expected True, False or a layout of torch, got {shown(as_nested)}")
    if prefix is None:
        prefix = "collector" if "collector" in batch.keys() else ()  # noqa: SIM118 (iteration is over rows)
    ids_key = _parts(trajectory_key) if trajectory_key is not None else (*_parts(prefix), "traj_ids")
    mask_key = (*ids_key[:-1], "mask")
    flat, starts, lengths = _cut(batch, ids_key, mask_key, ("next", *_parts("done" if done_key is None else done_key)))
    if as_nested is not False:
        frames = flat.exclude(mask_key)
        pieces = [frames[start : start + length] for start, length in torch.stack([starts, lengths], 1).tolist()]
        return _nested(pieces, torch.strided if as_nested is True else as_nested)
    rows, longest = len(starts), int(lengths.max()) if len(lengths) else 0
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
    split.set(mask_key, mask)
    split.get(ids_key)[~mask] = NO_TRAJECTORY
    split.names = [None, "time"]
    assert isinstance(split, TensorDict)
    return split


def frames_of(batch: "TensorDict") -> "TensorDict":
    """Return the frames of a batch `[...]` in a row, `[frames]`, without padding and mask."""
    flat = _flat(batch)
    if MASK in flat.keys(True):
        flat = flat[flat.get(MASK)].exclude(MASK)
    return flat


def rows_for(buffer: object, batch: "TensorDict") -> "TensorDict":
    """Return a batch `[..., T]` in the form that a replay buffer's `extend` takes.

    Most buffers take frames, `[frames]`, without padding. One of TorchRL's with a storage of n > 1 dimensions takes n
    dimensions, such as `[envs, T]` as they are, and adds to them along time.

    Raises:
        JobInvalid: The storage has more dimensions than the batch, or the batch has padding, which would be stored, or
            is not a TensorDict.
    """
    if not hasattr(batch, "batch_size"):
        raise JobInvalid(f"`replay_buffer` stores TensorDicts, and `postproc` returned {shown(batch)}")
    dims = getattr(getattr(buffer, "storage", None), "ndim", 1)
    if not isinstance(dims, int) or dims < 2:
        return frames_of(batch)
    if dims > batch.ndim:
        raise JobInvalid(
            f"the storage of `replay_buffer` has ndim={dims}, and batches have {batch.ndim} dimensions; write "
            f"ndim={batch.ndim}{', or 1' if batch.ndim > 1 else ''}"
        )
    if MASK in batch.keys(True):
        raise JobInvalid(
            f"these batches have padding, which the storage of `replay_buffer` with ndim={dims} would keep as frames; "
            "write ndim=1"
        )
    return batch if dims == batch.ndim else batch.flatten(0, batch.ndim - dims)


def _cut(
    batch: "TensorDict", ids_key: tuple[str, ...], mask_key: tuple[str, ...], done_key: tuple[str, ...]
) -> "tuple[TensorDict, Tensor, Tensor]":
    """Find the trajectories of a batch `[..., T]`.

    Returns:
        All frames in one dimension, with their ids; the first frame of each trajectory and its length, int64
        [trajectories].
    """
    flat, steps = _flat(batch), batch.shape[-1]
    known, mask = flat.get(ids_key, None), flat.get(mask_key, None)
    if known is not None:
        begins = torch.ones_like(known, dtype=torch.bool)
        begins[1:] = known[1:] != known[:-1]
    else:
        begins = _after(flat, done_key, ids_key)
    if steps:
        begins[::steps] = True
    if mask is not None:
        begins[1:] |= mask[1:] != mask[:-1]
    if known is None:
        known = begins.cumsum(0) - 1
        flat = flat.copy().set(ids_key, known)
    starts = begins.nonzero().squeeze(1)
    lengths = torch.cat([starts[1:], starts.new_full((min(1, len(starts)),), len(flat))]) - starts
    real = (known != NO_TRAJECTORY if mask is None else mask)[starts]
    return flat, starts[real], lengths[real]


def _nested(pieces: list[Any], layout: torch.layout) -> "TensorDict":
    """Return trajectories, each `[frames]`, as nested tensors, `[trajectories, -1]`."""
    if not pieces:
        raise JobInvalid("a batch without frames has no nested tensors; remove `as_nested`")

    def nest(*values: Tensor) -> Tensor:
        return torch.nested.nested_tensor(list(values), layout=layout, device=values[0].device)

    alike = len({len(piece) for piece in pieces}) == 1  # torch then knows the length
    size = [len(pieces), len(pieces[0]) if alike else -1][: 1 if layout is torch.jagged else 2]
    nested: TensorDict = pieces[0].apply(nest, *pieces[1:], batch_size=size)
    return nested


def _flat(batch: "TensorDict") -> "TensorDict":
    if batch.shape.numel():  # `batch.numel()` is never 0
        return batch.reshape(-1)
    flat: TensorDict = batch.apply(lambda value: value.flatten(0, batch.ndim - 1), batch_size=[0])
    return flat  # TensorDict cannot reshape a batch without elements


def _after(flat: "TensorDict", done_key: tuple[str, ...], ids_key: tuple[str, ...]) -> Tensor:
    """Return which frames follow one that is done."""
    done = flat.get(done_key, None)
    if done is None:
        raise JobInvalid(
            f"split_trajectories: the batch has no trajectory ids {ids_key}, and no flags {done_key} either"
        )
    follows = torch.zeros(len(flat), dtype=torch.bool, device=done.device)
    follows[1:] = done.reshape(len(follows))[:-1]
    return follows


def _parts(key: NestedKey) -> tuple[str, ...]:
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple) or not all(isinstance(part, str) for part in parts):
        raise JobInvalid(
            f"split_trajectories: expected a key, such as 'traj_ids', or a tuple of them, got {shown(key)}"
        )
    return parts
