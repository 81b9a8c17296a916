"""Returns, lengths and last observations of episodes, collected while a vector of environments runs."""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rollfleet.data.batch import Episodes
from rollfleet.data.tensor_memory import Array

log = logging.getLogger(__name__)

LONG_FRAMES = 30_000
"""More than the longest episode of Atari: 108,000 frames, of which an agent sees each fourth."""


class EpisodeCounts:
    """Returns and lengths of running episodes, which fragments do not interrupt, and of ended ones.

    Attributes:
        returns: float64 [envs], of running episodes so far.
        lengths: int64 [envs], of running episodes so far, in frames.
        ended: Number of episodes that ended since `take`.
    """

    def __init__(self, num_envs: int) -> None:
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

    def take(self) -> Episodes:
        """Return and clear what is said of ended episodes."""
        returns = np.concatenate([np.zeros(0), *(returns for returns, _ in self._ended)])
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *(lengths for _, lengths in self._ended)])
        self.ended, self._ended = 0, []
        return {"returns": torch.from_numpy(returns), "lengths": torch.from_numpy(lengths)}


class LongEpisodes:
    """Warns, once, of an episode that `what` waits for, and that may have no end."""

    def __init__(self, what: str) -> None:
        self._what, self._warned = what, False

    def check(self, lengths: NDArray[np.int64]) -> None:
        """Warn if an episode of these frames so far is longer than usual ones."""
        if not self._warned and (frames := int(lengths.max(initial=0))) >= LONG_FRAMES:
            self._warned = True
            log.warning(
                "%s waits for the end of an episode that has %s frames; if it has no end, set `max_frames_per_traj` "
                "(`collect.maxFramesPerTraj` of a job)",
                self._what,
                f"{frames:,}",
            )


class FinalObservations:
    """True next observations of frames that have no successor in their row, in row-major order."""

    def __init__(self) -> None:
        self._rows: list[Sequence[Array]] = []
        self._envs: list[NDArray[np.intp]] = []

    def add(self, envs: NDArray[np.intp], rows: Sequence[Array]) -> None:
        """Record the observations that came after a frame. Frames come in their order.

        Args:
            envs: intp [n], the environments.
            rows: One array [n, ...] per leaf. Pass copies: they are kept.
        """
        if len(envs):
            self._rows.append(rows)
            self._envs.append(envs)

    def sorted(self) -> list[Array]:
        """Return them by environment, then frame: one array [n, ...] per leaf; no array if there are none."""
        if not self._rows:
            return []
        order = np.argsort(np.concatenate(self._envs), kind="stable")
        return [np.concatenate(leaf)[order] for leaf in zip(*self._rows, strict=True)]
