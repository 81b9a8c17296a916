"""Returns, lengths and last observations of episodes, collected while a vector of environments runs."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.tensor_memory import Array


class EpisodeCounts:
    """Returns and lengths of running episodes, which fragments do not interrupt, and of ended ones.

    Attributes:
        returns: float64 [envs], of running episodes so far.
        lengths: int64 [envs], of running episodes so far, in frames.
        ended: Number of episodes that ended since `take`.
    """

    def __init__(self, num_envs: int) -> None:
        """Start an episode in every environment."""
        self.returns: NDArray[np.float64] = np.zeros(num_envs, dtype=np.float64)
        self.lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.ended = 0
        self._ended: list[tuple[NDArray[np.float64], NDArray[np.int64]]] = []

    def end(self, envs: NDArray[np.intp]) -> None:
        """Record the end of the episodes in `envs`; their next frame is the first of another episode."""
        self.ended += len(envs)
        self._ended.append((self.returns[envs], self.lengths[envs]))
        self.discard(envs)

    def discard(self, envs: NDArray[np.intp] | slice) -> None:
        """Abandon the episodes in `envs` without counting them."""
        self.returns[envs] = 0.0
        self.lengths[envs] = 0

    def take(self) -> tuple[Tensor, Tensor]:
        """Return and clear returns float64 [m] and lengths int64 [m] of ended episodes, in order of their end."""
        returns = np.concatenate([np.zeros(0), *(returns for returns, _ in self._ended)])
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *(lengths for _, lengths in self._ended)])
        self.ended, self._ended = 0, []
        return torch.from_numpy(returns), torch.from_numpy(lengths)


class FinalObservations:
    """True next observations of frames that have no successor in their row, in row-major order."""

    def __init__(self) -> None:
        """Start empty."""
        self._rows: list[Sequence[Array]] = []
        self._envs: list[NDArray[np.intp]] = []
        self._frames: list[NDArray[np.int64]] = []

    def add(self, envs: NDArray[np.intp], frames: NDArray[np.int64] | int, rows: Sequence[Array]) -> None:
        """Record the observations that came after some frames.

        Args:
            envs: intp [n], the environments.
            frames: The frame of each: int64 [n], or one number for all.
            rows: One array [n, ...] per leaf. Pass copies: they are kept.
        """
        if len(envs):
            self._rows.append(rows)
            self._envs.append(envs)
            at = np.full(envs.shape, frames, dtype=np.int64) if isinstance(frames, int) else frames
            self._frames.append(at)

    def take(self, frames: int) -> list[Array]:
        """Return and clear the observations after the first `frames` frames, by environment, then frame.

        The remaining ones are renumbered to start behind those frames.

        Returns:
            One array [n, ...] per leaf; empty if there are no observations.
        """
        if not self._rows:
            return []
        envs, at = np.concatenate(self._envs), np.concatenate(self._frames)
        rows: list[Array] = [np.concatenate(leaf) for leaf in zip(*self._rows, strict=True)]
        now = at < frames
        self._rows, self._envs, self._frames = [], [], []
        if not now.all():
            self.add(envs[~now], at[~now] - frames, [leaf[~now] for leaf in rows])
            rows, envs, at = [leaf[now] for leaf in rows], envs[now], at[now]
        order = np.argsort(envs * frames + at, kind="stable")
        return [leaf[order] for leaf in rows]
