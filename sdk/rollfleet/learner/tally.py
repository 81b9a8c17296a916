"""Counters of a learner: frames, batches, episodes."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite, isnan
from typing import Any, Final

from rollfleet.learner.episode_table import COLUMNS, LABEL, Columns, EpisodeTable, episodes_of
from rollfleet.transports.learner_side import Arrival
from rollfleet_api.messages import MOST_NUMBERS, MOST_STATISTICS, Statistic
from rollfleet_api.versions import count_of

log = logging.getLogger(__name__)

EPISODES = 100  # in statistics
OWN: Final = ("return", "length", "last_version")
"""Numbers of episodes that no environment says."""
MOST_OWN: Final = len(OWN) + MOST_NUMBERS
UNCOUNTED: Final = frozenset((*COLUMNS, LABEL)) - frozenset(OWN)
"""Columns of the table that have no statistics."""


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
        recent: The last 100 values of each number of these episodes, by name: the columns of `episodes_of` that are
            `return`, `length`, `last_version`, and the numbers in last infos.
        by_label: The same of the episodes with one label: `return/LABEL`, and the numbers in last infos.
        warned: Whether a warning said that `by_label` has no room for more names.
        table: The last 10,000 episodes, one by one.
    """

    frames: int = 0
    batches: int = 0
    nbytes: int = 0
    lag: int = 0
    episodes: int = 0
    non_finite: int = 0
    failed_episodes: Mapping[str, int] = field(default_factory=dict)
    recent: dict[str, deque[float]] = field(default_factory=dict)
    by_label: dict[str, deque[float]] = field(default_factory=dict)
    warned: bool = False
    table: EpisodeTable = field(default_factory=EpisodeTable)
    _before: "Tally | None" = None  # the last batch

    def add(self, arrivals: Sequence[Arrival], *, newest: int, time_s: float) -> None:
        """Count one batch of these arrivals. `newest` is the count of the newest version at that time."""
        self._before = replace(
            self,
            recent={name: numbers.copy() for name, numbers in self.recent.items()},
            by_label={name: numbers.copy() for name, numbers in self.by_label.items()},
            _before=None,
        )
        for arrival in arrivals:
            self.frames += arrival.meta.frames
            self.nbytes += arrival.nbytes
            self.lag = max(0, newest - count_of(arrival.meta.version))
            self.non_finite += arrival.meta.non_finite
            if failed := arrival.meta.failed_episodes:
                self.failed_episodes = added(self.failed_episodes, failed)
            if ended := len(arrival.episodes["returns"]):
                self.episodes += ended
                episodes = episodes_of(arrival, time_s)
                self.table.add(episodes)
                for name in episodes:
                    if name not in UNCOUNTED:
                        self.recent = _noted(self.recent, MOST_OWN, name, episodes[name])
                if LABEL in episodes:
                    self._note_by_label(episodes)
        self.batches += 1

    def _note_by_label(self, episodes: Columns) -> None:
        labels = episodes[LABEL]
        for name in ("return", *(name for name in episodes if name not in (*COLUMNS, LABEL))):
            for label in dict.fromkeys(label for label in labels if isinstance(label, str)):
                numbers = [number for number, each in zip(episodes[name], labels, strict=True) if each == label]
                self.by_label = _noted(self.by_label, MOST_STATISTICS - MOST_OWN, f"{name}/{label}", numbers)
                if f"{name}/{label}" not in self.by_label and not self.warned:
                    self.warned = True
                    log.warning(
                        "%d statistics of labels are known; %r and others are not counted: name the numbers that count "
                        "in `episode_metrics` (`collect.episodeMetrics` of a job)",
                        *(len(self.by_label), f"{name}/{label}"),
                    )

    def take_back(self) -> None:
        """Forget the last batch: it was lost on its way to the learner's loop."""
        self.table.take_back(self.episodes - (self._before or self).episodes)
        for each in fields(self) if self._before else ():
            setattr(self, each.name, getattr(self._before, each.name))

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes; None: no episode has ended."""
        returns = self.values("return")
        return sum(returns) / len(returns) if returns else None

    def values(self, name: str) -> list[float]:
        """Return the last 100 values of a number of episodes."""
        return list(self.recent.get(name, ()))

    @property
    def infos(self) -> dict[str, list[float]]:
        """The last 100 values of each number in last infos, by name."""
        return {name: list(numbers) for name, numbers in self.recent.items() if name not in OWN}

    @property
    def statistics(self) -> dict[str, Statistic]:
        """What the last 100 values say of numbers of episodes, as far as it is finite, by name."""
        every = {**self.recent, **self.by_label, **self.recent}  # a number's own name comes first, and counts
        found = ((name, list(numbers)) for name, numbers in every.items())
        return {
            name: Statistic(mean=total / len(values), min=min(values), max=max(values), count=len(values))
            for name, values in found
            if values and isfinite(total := float(sum(values)))
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, for a run that continues elsewhere."""
        return {
            "frames": self.frames,
            "batches": self.batches,
            "episode_returns": self.values("return"),
            "episode_lengths": self.values("length"),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.batches, self.frames = state["batches"], state["frames"]
        self.recent = {name: deque(state[f"episode_{name}s"], EPISODES) for name in ("return", "length")}
        self.by_label = {}


def _noted(known: dict[str, deque[float]], most: int, name: str, numbers: Sequence[float]) -> dict[str, deque[float]]:
    """Return numbers by name with more values of one name, unless there are too many names. NaN: no value."""
    if name not in known:
        if len(known) >= most:
            return known
        known = {**known, name: deque(maxlen=EPISODES)}  # a copy: another thread may read it
    known[name].extend(numbers if name in OWN else [number for number in numbers if not isnan(number)])
    return known


def added(known: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of counts by name, of which there are `MOST_NUMBERS` names at most."""
    names = list(dict.fromkeys((*known, *more)))[:MOST_NUMBERS]
    return {name: known.get(name, 0) + more.get(name, 0) for name in names}
