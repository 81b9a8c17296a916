"""Who waits for whom: shares of the time, the sentence that reads them, and what would make the job faster."""

from collections import deque
from collections.abc import Mapping
from math import ceil
from typing import Final, NamedTuple

from rollfleet_api.env_servers import MAX_SERVERS
from rollfleet_api.job import MAX_WORKERS, CollectorJobSpec
from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus

WINDOW_S: Final = 30.0
"""The time that the shares are about."""
BALANCED: Final = 0.1
"""A smaller share of the time does not count as a bottleneck."""
MOST: Final = 0.5
"""Workers whose environments take this share of their time wait for them."""
WORTH: Final = 1.3
"""A change that makes a job this many times as fast is worth an advice."""
WAY_S: Final = 0.001
"""Time of a step that no more servers shorten: a message there and back, with its pixels (decision 0043)."""
_SENTENCES: Final = (
    "{} the bottleneck: the learner waited {} for data{}.",
    "The learner is the bottleneck: workers waited {} for it.",
    "The learner is the bottleneck: workers waited {} for weights.",
)


class Shares(NamedTuple):
    """Shares of the time. Those of workers are their mean. That of environments is known from whole batches."""

    learner: float = 0.0
    workers_for_learner: float = 0.0
    workers_for_weights: float = 0.0
    workers_for_environments: float = 0.0


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

    def seconds(self) -> tuple[float, ...]:
        """Return the seconds waited for the learner, for weights and for environments, those of batches, and frames."""
        learner_s, weights_s, *of_batches = _counters(self.beat)
        running_s = self.beat.time_s - self.since_s
        match self.beat.state:
            case WorkerState.WAITING_FOR_LEARNER:
                learner_s += running_s
            case WorkerState.WAITING_FOR_WEIGHTS:
                weights_s += running_s
            case _:
                pass
        return learner_s, weights_s, *of_batches


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
        # Since the learner came: times; until then, by heartbeats, seconds of the learner, its waits, `_Wait.seconds`.
        self._looks: deque[tuple[float, ...]] = deque()

    def look(self, now_s: float, learner: LearnerStatus | None, workers: Mapping[int, WorkerStatus]) -> Shares | None:
        """Add the newest heartbeats. Returns the shares of the last `WINDOW_S`; None: unknown."""
        grown = (*self._of_learner(learner), *self._of_workers(workers, now_s))
        looks = self._looks
        if learner is None:
            looks.clear()
        elif not looks:
            looks.append((now_s, *[0.0] * len(grown)))
        else:
            looks.append((max(now_s, looks[-1][0]), *map(sum, zip(looks[-1][1:], grown, strict=True))))
        while len(looks) > 2 and looks[-1][0] - looks[1][0] >= WINDOW_S:
            looks.popleft()
        return self._shares()

    def bottleneck(self, spec: CollectorJobSpec | None = None) -> str:
        """Return who waits for whom, and for which servers; empty: unknown. `spec`: advise on the size of its job."""
        shares = self._shares()
        if shares is None:
            return ""
        span_s, *_, environments_s, _, frames = self._growth()
        sentence = self._sentence(shares, f"last {span_s:.0f} s")
        slow = {index: beat.slow_servers for index, (beat, _) in self._workers.items() if beat.slow_servers}
        if slow:
            others = f" (and {len(slow) - 1} more)" if len(slow) > 1 else ""
            return f"{sentence} In worker {min(slow)}{others}, {slow[min(slow)]}."
        known = environments_s and frames and span_s >= WINDOW_S
        if spec is None or not known or shares.learner < max(shares[:3]):
            return sentence
        return sentence + _advice(spec, shares, environments_s / frames * spec.env.num_envs)

    def _sentence(self, shares: Shares, span: str) -> str:
        share, sentence = max(zip(shares, _SENTENCES, strict=False))
        if share < BALANCED:
            return f"Nothing is a bottleneck: learner and workers waited less than 10 % of the {span}."
        waited = f"{100 * share:.0f} % of the {span}"
        if share > shares.learner:
            return sentence.format(waited)
        environments, who, of_them = shares.workers_for_environments, "The workers are", ""
        if environments:
            who = "The environments are" if environments >= MOST else "The workers are"
            of_them = f", and environments took {100 * environments:.0f} % of the workers' time"
        return sentence.format(who, waited, of_them)

    def _growth(self) -> list[float]:
        return [late - early for early, late in zip(self._looks[0], self._looks[-1], strict=True)]

    def _shares(self) -> Shares | None:
        if not self._looks:
            return None
        _, of_s, *waited_s, environments_s, batches_s, _ = self._growth()
        if not of_s:
            return None
        learner, for_learner, for_weights = (min(each / of_s, 1.0) for each in waited_s)
        of_a_batch = min(environments_s / batches_s, 1.0) if batches_s else 0.0
        return Shares(learner, for_learner, for_weights, of_a_batch * max(1 - for_learner - for_weights, 0.0))

    def _of_learner(self, learner: LearnerStatus | None) -> tuple[float, float]:
        """Return the seconds between its heartbeats, and those of them that it waited."""
        old, self._learner = self._learner, learner
        if not (learner and old and learner.session == old.session):
            return 0.0, 0.0
        return max(learner.time_s - old.time_s, 0.0), max(learner.waited_s - old.waited_s, 0.0)

    def _of_workers(self, workers: Mapping[int, WorkerStatus], at_s: float) -> list[float]:
        """Return the seconds that a worker, on average, has waited since the last look: those of `_Wait.seconds`."""
        present = {  # a worker's last word may be missed: one that is silent has left, or waits for nothing
            index: beat for index, beat in workers.items() if not beat.state.ended and at_s - beat.time_s < WINDOW_S
        }
        before, self._workers = self._workers, {}
        total = [0.0] * 5
        for index, beat in present.items():
            old = before.get(index)
            new = self._workers[index] = old.next(beat) if old else _Wait(beat, beat.time_s)
            if old and old.beat.incarnation == beat.incarnation:
                grown = zip(total, new.seconds(), old.seconds(), strict=True)
                total = [each + max(now_s - then_s, 0.0) for each, now_s, then_s in grown]
        return [each / max(len(present), 1) for each in total]


def _advice(spec: CollectorJobSpec, shares: Shares, step_s: float) -> str:
    """Return which size of a job with environment servers would be `WORTH` it; empty: none, by the shares.

    Twice the servers need half the time of a step, `step_s`, but for the way to them; twice the workers at least half
    the time of all; and the learner takes no more frames than without any wait.
    """
    if (servers := spec.env.servers) is None or not spec.workers:
        return ""
    more, workers = min(2 * servers.replicas, spec.env.num_envs, MAX_SERVERS), min(2 * spec.workers, MAX_WORKERS)
    of_one, then = ceil(spec.env.num_envs / servers.replicas), ceil(spec.env.num_envs / more)
    collecting = max(1 - shares.workers_for_learner - shares.workers_for_weights, 0.0)
    stepping = shares.workers_for_environments * max(1 - WAY_S / step_s, 0.0)
    by_servers = _gain(stepping * (1 - then / of_one), shares.learner)
    by_workers = _gain(collecting * (1 - spec.workers / workers), shares.learner)
    if by_servers >= WORTH:
        return f" `env.servers.replicas: {more}` would make the job about {by_servers:.1f} times as fast."
    if by_workers >= WORTH and spec.autoscale is None:
        less = f", `env.servers.replicas: {more}` about {by_servers:.1f} times" if more > servers.replicas else ""
        return f" `workers: {workers}` would make the job up to {by_workers:.1f} times as fast{less}."
    return ""


def _gain(saved: float, learner: float) -> float:
    """Return how many times as fast a job is that saves this share of its workers' time."""
    return 1 / (1 - min(saved, learner))


def _counters(beat: WorkerStatus) -> tuple[float, float, float, float, int]:
    for_learner_s = beat.waited_for_space_s + beat.waited_for_round_s
    of_batches = beat.waited_for_environments_s, beat.collecting_s, beat.frames
    return for_learner_s, beat.waited_for_weights_s, *of_batches
