"""Who waits for whom: shares of the time, and the sentence that reads them."""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus

WINDOW_S: Final = 30.0
"""The time that the shares are about."""
BALANCED: Final = 0.1
"""A smaller share of the time does not count as a bottleneck."""
_SENTENCES: Final = (
    "The workers are the bottleneck: the learner waited {} for data.",
    "The learner is the bottleneck: workers waited {} for it.",
    "The learner is the bottleneck: workers waited {} for weights.",
)


class Shares(NamedTuple):
    """Shares of the time. Those of workers are their mean."""

    learner: float = 0.0
    workers_for_learner: float = 0.0
    workers_for_weights: float = 0.0


class _Wait(NamedTuple):
    """A worker's newest heartbeat, and the time since which it has said the same.

    A worker adds a wait to its counters at its end; until then, the time since its first heartbeat counts.
    """

    beat: WorkerStatus
    since_s: float

    def next(self, beat: WorkerStatus) -> "_Wait":
        old = self.beat
        same = (beat.incarnation, beat.state, *_counters(beat)) == (old.incarnation, old.state, *_counters(old))
        return _Wait(beat, self.since_s if same else beat.time_s)

    def seconds(self) -> tuple[float, float]:
        """Return the seconds waited for the learner and for weights."""
        learner_s, weights_s = _counters(self.beat)
        running_s = self.beat.time_s - self.since_s
        match self.beat.state:
            case WorkerState.WAITING_FOR_LEARNER:
                return learner_s + running_s, weights_s
            case WorkerState.WAITING_FOR_WEIGHTS:
                return learner_s, weights_s + running_s
            case _:
                return learner_s, weights_s


class Waits:
    """Adds up what heartbeats say about waits.

    Example:
        >>> waits = Waits()
        >>> for time_s, waited_s in ((0.0, 0.0), (10.0, 8.0)):
        ...     learner = LearnerStatus(session=1, waited_s=waited_s, time_s=time_s)
        ...     shares = waits.look(time_s, learner, {})
        >>> shares.learner, waits.bottleneck()
        (0.8, 'The workers are the bottleneck: the learner waited 80 % of the last 10 s for data.')
    """

    def __init__(self) -> None:
        self._learner: LearnerStatus | None = None
        self._workers: dict[int, _Wait] = {}
        # Since the learner came: times; until then, by heartbeats, seconds of the learner, and those of `Shares`.
        self._looks: deque[tuple[float, ...]] = deque()

    def look(self, now_s: float, learner: LearnerStatus | None, workers: Mapping[int, WorkerStatus]) -> Shares | None:
        """Add the newest heartbeats. Returns the shares of the last `WINDOW_S`; None: unknown."""
        grown = (*self._of_learner(learner), *self._of_workers(workers))
        looks = self._looks
        if learner is None:
            looks.clear()
        elif not looks:
            looks.append((now_s, 0.0, 0.0, 0.0, 0.0))
        else:
            looks.append((max(now_s, looks[-1][0]), *map(sum, zip(looks[-1][1:], grown, strict=True))))
        while len(looks) > 2 and looks[-1][0] - looks[1][0] >= WINDOW_S:
            looks.popleft()
        return self._shares()

    def bottleneck(self) -> str:
        """Return who waits for whom in one sentence; empty: unknown."""
        shares = self._shares()
        if shares is None:
            return ""
        span = f"last {self._looks[-1][0] - self._looks[0][0]:.0f} s"
        share, sentence = max(zip(shares, _SENTENCES, strict=True))
        if share < BALANCED:
            return f"Nothing is a bottleneck: learner and workers waited less than 10 % of the {span}."
        return sentence.format(f"{100 * share:.0f} % of the {span}")

    def _shares(self) -> Shares | None:
        if not self._looks:
            return None
        _, of_s, *waited = (late - early for early, late in zip(self._looks[0], self._looks[-1], strict=True))
        return Shares(*(min(each / of_s, 1.0) for each in waited)) if of_s else None

    def _of_learner(self, learner: LearnerStatus | None) -> tuple[float, float]:
        """Return the seconds between its heartbeats, and those of them that it waited."""
        old, self._learner = self._learner, learner
        if not (learner and old and learner.session == old.session):
            return 0.0, 0.0
        return max(learner.time_s - old.time_s, 0.0), max(learner.waited_s - old.waited_s, 0.0)

    def _of_workers(self, workers: Mapping[int, WorkerStatus]) -> tuple[float, float]:
        present = {index: beat for index, beat in workers.items() if not beat.state.ended}
        before, self._workers = self._workers, {}
        for_learner = for_weights = 0.0
        for index, beat in present.items():
            old = before.get(index)
            new = self._workers[index] = old.next(beat) if old else _Wait(beat, beat.time_s)
            if old and old.beat.incarnation == beat.incarnation:
                (learner_s, weights_s), (was_learner_s, was_weights_s) = new.seconds(), old.seconds()
                for_learner += max(learner_s - was_learner_s, 0.0)
                for_weights += max(weights_s - was_weights_s, 0.0)
        count = max(len(present), 1)
        return for_learner / count, for_weights / count


def _counters(beat: WorkerStatus) -> tuple[float, float]:
    return beat.waited_for_space_s + beat.waited_for_round_s, beat.waited_for_weights_s
