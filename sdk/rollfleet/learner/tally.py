"""Counters of a learner: frames, batches, episodes."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite, isnan
from typing import Any

from rollfleet.data.batch import EPISODE_INFO
from rollfleet.transports.learner_side import Arrival
from rollfleet_api.messages import MOST_NUMBERS
from rollfleet_api.versions import count_of

EPISODES = 100  # in `mean_return`


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts the batches that were handed over to the learner.

    Attributes:
        frames: Frames, without padding, with those of earlier learners.
        batches: Batches.
        nbytes: Their bytes on the wire.
        lag: Versions between the newest one and that of the last batch.
        episodes: Episodes that ended in these batches.
        non_finite: Their frames with NaN or infinity.
        failed_episodes: Episodes that a failure of their environment ended, by the class of its error.
        episode_returns: Returns of the last 100 episodes that ended in these batches.
        episode_lengths: Lengths of the same episodes, in frames.
        episode_infos: The last 100 values of each number in episodes' last infos, by name.
    """

    frames: int = 0
    batches: int = 0
    nbytes: int = 0
    lag: int = 0
    episodes: int = 0
    non_finite: int = 0
    failed_episodes: Mapping[str, int] = field(default_factory=dict)
    episode_returns: deque[float] = field(default_factory=lambda: deque(maxlen=EPISODES))
    episode_lengths: deque[int] = field(default_factory=lambda: deque(maxlen=EPISODES))
    episode_infos: dict[str, deque[float]] = field(default_factory=dict)
    _before: "Tally | None" = None  # the last batch

    def add(self, arrivals: Sequence[Arrival], *, newest: int) -> None:
        """Count one batch of these arrivals. `newest` is the count of the newest version at that time."""
        self._before = replace(
            self,
            episode_returns=self.episode_returns.copy(),
            episode_lengths=self.episode_lengths.copy(),
            episode_infos={name: numbers.copy() for name, numbers in self.episode_infos.items()},
            _before=None,
        )
        for arrival in arrivals:
            self.frames += arrival.meta.frames
            self.nbytes += arrival.nbytes
            self.lag = max(0, newest - count_of(arrival.meta.version))
            self.non_finite += arrival.meta.non_finite
            if failed := arrival.meta.failed_episodes:
                self.failed_episodes = added(self.failed_episodes, failed)
            self.episodes += len(arrival.episodes["returns"])
            self.episode_returns.extend(arrival.episodes["returns"].tolist())
            self.episode_lengths.extend(arrival.episodes["lengths"].tolist())
            for name, numbers in arrival.episodes.items():
                if name.startswith(EPISODE_INFO):
                    self._add_info(name.removeprefix(EPISODE_INFO), numbers.tolist())
        self.batches += 1

    def _add_info(self, name: str, numbers: Sequence[float]) -> None:
        known = self.episode_infos.get(name)
        if known is None:
            if len(self.episode_infos) >= MOST_NUMBERS:
                return
            known = deque(maxlen=EPISODES)
            self.episode_infos = {**self.episode_infos, name: known}  # a copy: another thread may read it
        known.extend(number for number in numbers if not isnan(number))

    def take_back(self) -> None:
        """Forget the last batch: it was lost on its way to the learner's loop."""
        for each in fields(self) if self._before else ():
            setattr(self, each.name, getattr(self._before, each.name))

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes; None: no episode has ended."""
        return sum(self.episode_returns) / len(self.episode_returns) if self.episode_returns else None

    @property
    def means(self) -> dict[str, float]:
        """Means of `episode_infos`, as far as they are finite, by name."""
        means = {name: sum(known) / len(known) for name, numbers in self.episode_infos.items() if (known := [*numbers])}
        return {name: mean for name, mean in means.items() if isfinite(mean)}

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, for a run that continues elsewhere."""
        return {
            "frames": self.frames,
            "batches": self.batches,
            "episode_returns": list(self.episode_returns),
            "episode_lengths": list(self.episode_lengths),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.batches, self.frames = state["batches"], state["frames"]
        for numbers, restored in ((self.episode_returns, "episode_returns"), (self.episode_lengths, "episode_lengths")):
            numbers.clear()
            numbers.extend(state[restored])


def added(known: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of counts by name, of which there are `MOST_NUMBERS` names at most."""
    names = list(dict.fromkeys((*known, *more)))[:MOST_NUMBERS]
    return {name: known.get(name, 0) + more.get(name, 0) for name in names}
