"""Returns and lengths of episodes, and what came after their last frames, gathered while lanes of a vector run."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[Any]


class EpisodeCounts:
    """Sums of the episodes under way, over the boundaries of fragments, and those of the episodes that ended.

    Attributes:
        returns: float64 [envs], so far.
        lengths: int64 [envs], so far.
        ended: How many have ended since `take`.
    """

    def __init__(self, num_envs: int) -> None:
        """All lanes at the start of an episode."""
        self.returns: NDArray[np.float64] = np.zeros(num_envs, dtype=np.float64)
        self.lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.ended = 0
        self._ended: list[tuple[NDArray[np.float64], NDArray[np.int64]]] = []

    def end(self, lanes: NDArray[np.intp]) -> None:
        """The episodes in `lanes` are over; the next frame there is the first of another."""
        self.ended += len(lanes)
        self._ended.append((self.returns[lanes], self.lengths[lanes]))
        self.forget(lanes)

    def forget(self, lanes: NDArray[np.intp] | slice) -> None:
        """The episodes in `lanes` are given up: they count for nothing."""
        self.returns[lanes] = 0.0
        self.lengths[lanes] = 0

    def take(self) -> tuple[Tensor, Tensor]:
        """Returns float64 [m] and lengths int64 [m] of those that ended since the last call, in order of their end."""
        returns = np.concatenate([np.zeros(0), *(returns for returns, _ in self._ended)])
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *(lengths for _, lengths in self._ended)])
        self.ended, self._ended = 0, []
        return torch.from_numpy(returns), torch.from_numpy(lengths)


class FinalObservations:
    """What truly came after frames that nothing follows, noted as it happens, handed out in row-major order."""

    def __init__(self) -> None:
        """None yet."""
        self._rows: list[Sequence[Array]] = []
        self._lanes: list[NDArray[np.intp]] = []
        self._frames: list[NDArray[np.int64]] = []

    def add(self, lanes: NDArray[np.intp], frames: NDArray[np.int64] | int, rows: Sequence[Array]) -> None:
        """After frame `frames` (one for all, or [n]) of `lanes` [n] came `rows` (a leaf [n, ...] each); pass copies."""
        if len(lanes):
            self._rows.append(rows)
            self._lanes.append(lanes)
            at = np.full(lanes.shape, frames, dtype=np.int64) if isinstance(frames, int) else frames
            self._frames.append(at)

    def take(self, frames: int) -> list[Array]:
        """Those of the first `frames` frames a lane, by lane, then frame, leaf by leaf; the others move up."""
        if not self._rows:
            return []
        lanes, at = np.concatenate(self._lanes), np.concatenate(self._frames)
        rows: list[Array] = [np.concatenate(leaf) for leaf in zip(*self._rows, strict=True)]
        now = at < frames
        self._rows, self._lanes, self._frames = [], [], []
        if not now.all():
            self.add(lanes[~now], at[~now] - frames, [leaf[~now] for leaf in rows])
            rows, lanes, at = [leaf[now] for leaf in rows], lanes[now], at[now]
        order = np.argsort(lanes * frames + at, kind="stable")
        return [leaf[order] for leaf in rows]
