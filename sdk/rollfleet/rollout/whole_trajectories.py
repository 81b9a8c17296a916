"""Whole trajectories of a rollout as a fragment: one in a row, padded to the longest."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rollfleet.data.batch import MASK, NO_TRAJECTORY, TERMINATED, TRAJECTORY, TRUNCATED, Episodes, Fragment, Key
from rollfleet.data.tensor_memory import Array
from rollfleet.data.whole_trajectories import WholeTrajectories
from rollfleet.rollout.stepper import Collected
from rollfleet.rollout.storage import Storage


class Piece(NamedTuple):
    """Frames of one environment.

    Attributes:
        env: The environment.
        values: By key, [length, ...].
        final: The observation after them, a leaf [...] each, if their trajectory ends there; else nothing.
    """

    env: int
    values: dict[Key, Tensor]
    final: Sequence[Array]


def add_frames(whole: WholeTrajectories[Piece], storage: Storage, collected: Collected) -> None:
    """Add copies of collected frames."""
    arrays, finals = storage.arrays, zip(*collected.finals, strict=True)
    ended = arrays[TERMINATED] | arrays[TRUNCATED]
    real = np.arange(ended.shape[1]) < collected.frames[:, None]

    def piece_of(env: int, frames: slice) -> Piece:
        values = {key: tensor[env, frames].clone() for key, tensor in storage.tensors.items()}
        return Piece(env, values, next(finals) if ended[env, frames.stop - 1] else ())

    whole.add(np.where(real, arrays[TRAJECTORY], NO_TRAJECTORY), ended, piece_of)


def cut_after(whole: WholeTrajectories[Piece], following: Sequence[Array]) -> None:
    """Truncate those under way. `following` (a leaf [envs, ...] each) holds their next observations."""
    for pieces in whole.cut():
        env, values, _ = pieces[-1]
        values[TRUNCATED][-1] = True
        pieces[-1] = Piece(env, values, [leaf[env].copy() for leaf in following])


def fragment_of(
    taken: Sequence[Sequence[Piece]], carried_keys: Sequence[Key], version: int, episodes: Episodes
) -> Fragment:
    """Return trajectories as a fragment with new memory."""
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
        rows = torch.from_numpy(np.stack(leaf))
        final[key] = rows.view(steps[key].dtype) if steps[key].dtype is torch.bfloat16 else rows
    return Fragment(steps=steps, final=final, episodes=episodes, version=version)
