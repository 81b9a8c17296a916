"""Returns, lengths and last observations of episodes, collected while a vector of environments runs."""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from rollfleet.data.batch import EPISODE_INFO, Episodes
from rollfleet.data.tensor_memory import Array

log = logging.getLogger(__name__)

NOTHING: Mapping[str, Array] = MappingProxyType({})
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
        self._ended: list[Mapping[str, Array]] = []

    def end(self, envs: NDArray[np.intp], said: Mapping[str, Array] = NOTHING) -> None:
        """Record the end of the episodes in `envs`; their next frame is the first of another episode.

        `said` is what the environments say of them, float64 [n] by name.
        """
        self.ended += len(envs)
        numbers = {EPISODE_INFO + name: values for name, values in said.items()}
        self._ended.append({"returns": self.returns[envs], "lengths": self.lengths[envs], **numbers})
        self.discard(envs)

    def discard(self, envs: NDArray[np.intp] | slice) -> None:
        """Abandon the episodes in `envs` without counting them."""
        self.returns[envs] = 0.0
        self.lengths[envs] = 0

    def take(self, count: int | None = None) -> Episodes:
        """Return and forget what is said of the first `count` episodes that ended; None: of all."""
        count = self.ended if count is None else min(count, self.ended)
        ended = self._joined()
        self.ended -= count
        self._ended = [{name: numbers[count:] for name, numbers in ended.items()}] if self.ended else []
        return {name: torch.from_numpy(numbers[:count]) for name, numbers in ended.items()}

    def _joined(self) -> dict[str, Array]:
        joined: dict[str, Array] = {"returns": np.zeros(self.ended), "lengths": np.zeros(self.ended, np.int64)}
        first = 0
        for part in self._ended:
            end = first + len(part["returns"])
            for name, numbers in part.items():
                if name not in joined:
                    joined[name] = np.full(self.ended, np.nan)
                joined[name][first:end] = numbers
            first = end
        return joined


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
