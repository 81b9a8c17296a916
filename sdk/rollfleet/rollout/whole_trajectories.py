"""Whole trajectories of a rollout as a fragment: one in a row, padded to the longest."""

from collections import deque
from collections.abc import Mapping, Sequence
from math import nan
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rollfleet.data.batch import (
    FAILED,
    MASK,
    NO_TRAJECTORY,
    REWARD,
    TERMINATED,
    TRAJECTORY,
    TRUNCATED,
    VERSION,
    Fragment,
    Key,
)
from rollfleet.data.tensor_memory import Array, as_tensor
from rollfleet.data.whole_trajectories import WholeTrajectories
from rollfleet.rollout.stepper import Collected
from rollfleet.rollout.storage import Storage


class Piece(NamedTuple):
    """Frames of one environment.

    Attributes:
        env: The environment.
        values: By key, [length, ...].
        final: The observation after them, a leaf [...] each, if their trajectory ends there; else nothing.
        said: What the environment says of the whole episode that ends there, by name; None: no whole one does.
    """

    env: int
    values: dict[Key, Tensor]
    final: Sequence[Array]
    said: Mapping[str, float] | None


def add_frames(
    whole: WholeTrajectories[Piece],
    storage: Storage,
    collected: Collected,
    said: Mapping[int, deque[dict[str, float]]],
) -> None:
    """Add copies of collected frames. `said`: by environment, of the episodes that ended in them, in their order."""
    arrays, finals = storage.arrays, zip(*collected.finals, strict=True)
    ended = arrays[TERMINATED] | arrays[TRUNCATED]
    real = np.arange(ended.shape[1]) < collected.frames[:, None]

    def piece_of(env: int, frames: slice) -> Piece:
        values = {key: tensor[env, frames].clone() for key, tensor in storage.tensors.items()}
        if not ended[env, frames.stop - 1]:
            return Piece(env, values, (), None)
        has_failed = FAILED in values and bool(values[FAILED][-1])
        return Piece(env, values, next(finals), None if has_failed else said[env].popleft())

    whole.add(np.where(real, arrays[TRAJECTORY], NO_TRAJECTORY), ended, piece_of)


def cut_after(whole: WholeTrajectories[Piece], following: Sequence[Array]) -> None:
    """Truncate those under way. `following` (a leaf [envs, ...] each) holds their next observations."""
    for pieces in whole.cut():
        _truncate(pieces, [leaf[pieces[-1].env].copy() for leaf in following])


def break_off(whole: WholeTrajectories[Piece], trajectory: int, following: Sequence[Array]) -> None:
    """Truncate one under way, whose environment has failed. `following`: its next observation, a leaf [...] each."""
    if pieces := whole.end(trajectory):
        pieces[-1].values[FAILED][-1] = True
        _truncate(pieces, following)


def _truncate(pieces: list[Piece], following: Sequence[Array]) -> None:
    env, values, *_ = pieces[-1]
    values[TRUNCATED][-1] = True
    pieces[-1] = Piece(env, values, following, None)


def fragment_of(taken: Sequence[Sequence[Piece]], carried_keys: Sequence[Key], version: int) -> Fragment:
    """Return trajectories as a fragment with new memory. Those that are whole episodes count."""
    lengths = torch.tensor([sum(len(piece.values[TRAJECTORY]) for piece in pieces) for pieces in taken], device="cpu")
    longest = int(lengths.max())
    steps: dict[Key, Tensor] = {}
    for key, first in taken[0][0].values.items():
        steps[key] = first.new_zeros((len(taken), longest, *first.shape[1:]))
        for pieces, row, length in zip(taken, steps[key], lengths.tolist(), strict=True):
            torch.cat([piece.values[key] for piece in pieces], out=row[:length])
    steps[MASK] = torch.arange(longest, device="cpu") < lengths[:, None]
    steps[TRAJECTORY][~steps[MASK]] = NO_TRAJECTORY
    final: dict[Key, Tensor] = {}
    for key, leaf in zip(carried_keys, zip(*(pieces[-1].final for pieces in taken), strict=True), strict=True):
        final[key] = as_tensor(np.stack(leaf), steps[key].dtype)
    said = {row: last.said for row, (*_, last) in enumerate(taken) if last.said is not None}
    counted = list(said)
    episodes = {"returns": steps[REWARD].double().sum((1, 2))[counted], "lengths": lengths[counted]}
    ends = torch.stack((torch.zeros_like(lengths), lengths - 1), 1)
    episodes["versions"] = steps[VERSION].gather(1, ends)[counted]
    for name in {name: None for each in said.values() for name in each}:
        numbers = [each.get(name, nan) for each in said.values()]
        episodes[name] = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    return Fragment(steps=steps, final=final, episodes=episodes, version=version)
