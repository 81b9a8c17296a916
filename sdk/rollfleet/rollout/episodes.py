"""Returns, lengths and last observations of episodes, collected while a vector of environments runs."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rollfleet.data.batch import Episodes
from rollfleet.data.tensor_memory import Array

log = logging.getLogger(__name__)

NOTHING: Mapping[str, Array] = MappingProxyType({})
LONG_FRAMES = 30_000
"""More than the longest episode of Atari: 108,000 frames, of which an agent sees each fourth."""


class _Ended(NamedTuple):
    """Episodes that ended with one step: intp, float64, int64 [n] twice, the last version, float64 [n] by name."""

    envs: NDArray[np.intp]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    first_versions: NDArray[np.int64]
    last_version: int
    said: Mapping[str, Array]


class EpisodeCounts:
    """Returns and lengths of running episodes, which fragments do not interrupt, and of ended ones.

    Attributes:
        returns: float64 [envs], of running episodes so far.
        lengths: int64 [envs], of running episodes so far, in frames.
        first_versions: int64 [envs], of the policy in the first frame of running episodes.
        version: The version of the policy that acts.
        ended: Number of episodes that ended since `take`.
        labels: The labels that the numbers in `EPISODE_LABEL` stand for.
    """

    def __init__(self, num_envs: int) -> None:
        self.returns: NDArray[np.float64] = np.zeros(num_envs, dtype=np.float64)
        self.lengths: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.first_versions: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.version = 0
        self.ended = 0
        self.labels: tuple[str, ...] = ()
        self._ended: list[_Ended] = []

    def act(self, version: int) -> None:
        """Note the version of the policy that acts from now on."""
        self.version = version
        self.first_versions[self.lengths == 0] = version

    def end(self, envs: NDArray[np.intp], said: Mapping[str, Array] = NOTHING) -> None:
        """Record the end of the episodes in `envs`; their next frame is the first of another episode.

        `said` is what the environments say of them, float64 [n] by the name that it has in `Episodes`.
        """
        self.ended += len(envs)
        versions = self.first_versions[envs], self.version
        self._ended.append(_Ended(envs, self.returns[envs], self.lengths[envs], *versions, said))
        self.discard(envs)

    def discard(self, envs: NDArray[np.intp] | slice) -> None:
        """Abandon the episodes in `envs` without counting them."""
        self.returns[envs] = 0.0
        self.lengths[envs] = 0
        self.first_versions[envs] = self.version

    def take(self) -> Episodes:
        """Return and forget what is said of the episodes that ended, in the order of their ends."""
        taken: dict[str, Array] = {"returns": np.zeros(self.ended), "lengths": np.zeros(self.ended, np.int64)}
        taken["versions"] = np.zeros((self.ended, 2), np.int64)
        first = 0
        for ended in self._ended:
            end = first + len(ended.envs)
            taken["returns"][first:end], taken["lengths"][first:end] = ended.returns, ended.lengths
            taken["versions"][first:end, 0], taken["versions"][first:end, 1] = ended.first_versions, ended.last_version
            for name, numbers in ended.said.items():
                if name not in taken:
                    taken[name] = np.full(self.ended, np.nan)
                taken[name][first:end] = numbers
            first = end
        self.ended, self._ended = 0, []
        return {name: torch.from_numpy(numbers) for name, numbers in taken.items()}

    def take_said(self) -> dict[int, deque[dict[str, float]]]:
        """Return what the environments say of these episodes alone, by environment, and forget them."""
        said = dict[int, deque[dict[str, float]]]()
        for ended in self._ended:
            for row, env in enumerate(ended.envs.tolist()):
                numbers = {name: float(values[row]) for name, values in ended.said.items()}
                said.setdefault(env, deque()).append(numbers)
        self.ended, self._ended = 0, []
        return said


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
