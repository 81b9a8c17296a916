"""Whole trajectories from rows that end anywhere: one in a row, padded to the longest."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from rollfleet.data.batch import MASK, NO_TRAJECTORY, REWARD, TERMINATED, TRAJECTORY, TRUNCATED, Fragment, Key
from rollfleet.data.tensor_memory import Array
from rollfleet.rollout.stepper import Collected, Storage

Piece = dict[Key, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trajectory:
    """Frames [length, ...] in pieces, and the observation after them. `cut`: its episode did not end there."""

    pieces: list[Piece]
    final: list[Array]
    cut: bool = False

    @property
    def length(self) -> int:
        return sum(len(piece[TRAJECTORY]) for piece in self.pieces)


class WholeTrajectories:
    """Assembles collected frames into trajectories, in order of their end."""

    def __init__(self, num_envs: int) -> None:
        self._open: list[list[Piece]] = [[] for _ in range(num_envs)]
        self._whole: deque[_Trajectory] = deque()

    def __len__(self) -> int:
        return len(self._whole)

    @property
    def started(self) -> bool:
        """Whether any trajectory is complete or has at least one frame."""
        return bool(self._whole) or any(self._open)

    def discard_open(self) -> None:
        """Discard incomplete trajectories, after the environments were reset."""
        self._open = [[] for _ in self._open]

    def add(self, storage: Storage, collected: Collected) -> None:
        """Add copies of collected frames."""
        arrays, ended = storage.arrays, []
        row = 0
        for env, frames in enumerate(collected.frames.tolist()):
            done = arrays[TERMINATED][env, :frames] | arrays[TRUNCATED][env, :frames]
            start = 0
            for end in np.flatnonzero(done).tolist():
                self._open[env].append(_piece(storage, env, start, end + 1))
                final = [leaf[row] for leaf in collected.finals]
                ended.append((end, env, _Trajectory(pieces=self._open[env], final=final)))
                self._open[env] = []
                start, row = end + 1, row + 1
            if start < frames:
                self._open[env].append(_piece(storage, env, start, frames))
        ended.sort(key=itemgetter(0, 1))
        self._whole.extend(trajectory for *_, trajectory in ended)

    def cut_open(self, following: Sequence[Array]) -> None:
        """Truncate all incomplete trajectories. `following` (a leaf [envs, ...] each) holds their next observations."""
        for env, pieces in enumerate(self._open):
            if pieces:
                pieces[-1][TRUNCATED][-1] = True
                final = [leaf[env].copy() for leaf in following]
                self._whole.append(_Trajectory(pieces=pieces, final=final, cut=True))
        self.discard_open()

    def take(self, count: int, carried_keys: Sequence[Key], version: int) -> Fragment:
        """Remove at most `count` complete trajectories, and return them as a fragment with new memory.

        At least one must be complete.
        """
        taken = [self._whole.popleft() for _ in range(min(count, len(self._whole)))]
        lengths = torch.tensor([trajectory.length for trajectory in taken], device="cpu")
        longest = int(lengths.max())
        steps: dict[Key, Tensor] = {}
        for key, first in taken[0].pieces[0].items():
            steps[key] = first.new_zeros((len(taken), longest, *first.shape[1:]))
            for trajectory, row in zip(taken, steps[key], strict=True):
                torch.cat([piece[key] for piece in trajectory.pieces], out=row[: trajectory.length])
        steps[MASK] = torch.arange(longest, device="cpu") < lengths[:, None]
        steps[TRAJECTORY][~steps[MASK]] = NO_TRAJECTORY
        final: dict[Key, Tensor] = {}
        for key, leaf in zip(carried_keys, zip(*(trajectory.final for trajectory in taken), strict=True), strict=True):
            rows = torch.from_numpy(np.stack(leaf))
            final[key] = rows.view(steps[key].dtype) if steps[key].dtype is torch.bfloat16 else rows
        ended = torch.tensor([not trajectory.cut for trajectory in taken], device="cpu")
        return Fragment(
            steps=steps,
            final=final,
            episodes={"returns": steps[REWARD].double().sum((1, 2))[ended], "lengths": lengths[ended]},
            version=version,
        )


def _piece(storage: Storage, env: int, start: int, end: int) -> Piece:
    return {key: tensor[env, start:end].clone() for key, tensor in storage.tensors.items()}
