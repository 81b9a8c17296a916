"""Whole trajectories out of rows that end anywhere, one in a row, padded to the longest."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rollfleet.data.batch import MASK, NO_TRAJECTORY, REWARD, TERMINATED, TRAJECTORY, TRUNCATED, Fragment, Key
from rollfleet.data.storage import Storage
from rollfleet.policies.actor import Array
from rollfleet.rollout.context import Collected

Piece = dict[Key, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trajectory:
    """Frames [length, ...] in pieces, and what came after the last one. `cut`: its episode did not end there."""

    pieces: list[Piece]
    final: list[Array]
    cut: bool = False

    @property
    def length(self) -> int:
        return sum(len(piece[TRAJECTORY]) for piece in self.pieces)


class WholeTrajectories:
    """Takes in what lanes collect, and gives trajectories out in order of their end."""

    def __init__(self, num_envs: int) -> None:
        """Nothing has begun."""
        self._open: list[list[Piece]] = [[] for _ in range(num_envs)]
        self._whole: deque[_Trajectory] = deque()

    def __len__(self) -> int:
        """Whole trajectories that can be taken."""
        return len(self._whole)

    @property
    def begun(self) -> bool:
        """There is something that could be taken, whole or cut."""
        return bool(self._whole) or any(self._open)

    def forget_open(self) -> None:
        """The environments were reset: what had begun ends nowhere."""
        self._open = [[] for _ in self._open]

    def add(self, storage: Storage, collected: Collected) -> None:
        """Take in the frames of a harvest; they are copied."""
        arrays, ended = storage.arrays, []
        row = 0
        for lane, frames in enumerate(collected.frames.tolist()):
            done = arrays[TERMINATED][lane, :frames] | arrays[TRUNCATED][lane, :frames]
            start = 0
            for end in np.flatnonzero(done).tolist():
                self._open[lane].append(_piece(storage, lane, start, end + 1))
                final = [leaf[row] for leaf in collected.finals]
                ended.append((end, lane, _Trajectory(pieces=self._open[lane], final=final)))
                self._open[lane] = []
                start, row = end + 1, row + 1
            if start < frames:
                self._open[lane].append(_piece(storage, lane, start, frames))
        ended.sort(key=lambda one: one[:2])
        self._whole.extend(trajectory for *_, trajectory in ended)

    def cut_open(self, following: Sequence[Array]) -> None:
        """Truncate all that has begun, where `following` (a leaf [envs, ...] each) comes next."""
        for lane, pieces in enumerate(self._open):
            if pieces:
                pieces[-1][TRUNCATED][-1] = True
                final = [leaf[lane].copy() for leaf in following]
                self._whole.append(_Trajectory(pieces=pieces, final=final, cut=True))
        self.forget_open()

    def take(self, count: int, carried_keys: Sequence[Key], version: int) -> Fragment:
        """At most `count` of them, and at least one, as a fragment with new memory."""
        taken = [self._whole.popleft() for _ in range(min(count, len(self._whole)))]
        lengths = torch.tensor([trajectory.length for trajectory in taken])
        longest = int(lengths.max())
        steps: dict[Key, Tensor] = {}
        for key, first in taken[0].pieces[0].items():
            steps[key] = first.new_zeros((len(taken), longest, *first.shape[1:]))
            for trajectory, row in zip(taken, steps[key], strict=True):
                torch.cat([piece[key] for piece in trajectory.pieces], out=row[: trajectory.length])
        steps[MASK] = torch.arange(longest) < lengths[:, None]
        steps[TRAJECTORY][~steps[MASK]] = NO_TRAJECTORY
        final: dict[Key, Tensor] = {}
        for key, leaf in zip(carried_keys, zip(*(trajectory.final for trajectory in taken), strict=True), strict=True):
            rows = torch.from_numpy(np.stack(leaf))
            final[key] = rows.view(steps[key].dtype) if steps[key].dtype is torch.bfloat16 else rows
        ended = torch.tensor([not trajectory.cut for trajectory in taken])
        return Fragment(
            steps=steps,
            final=final,
            episode_returns=steps[REWARD].double().sum((1, 2))[ended],
            episode_lengths=lengths[ended],
            version=version,
        )


def _piece(storage: Storage, lane: int, start: int, end: int) -> Piece:
    return {key: tensor[lane, start:end].clone() for key, tensor in storage.tensors.items()}
