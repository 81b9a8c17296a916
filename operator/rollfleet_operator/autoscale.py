"""The number of workers of a job with `autoscale`: a pure function of heartbeats.

The target is a fraction of the learner's time: how long its loop may wait for data. The effect of another number of
workers follows from the mode. In mode Sync the loop waits while a round is collected, and twice the workers collect a
round in half the time: `wait / (1 - wait)` is proportional to `1 / workers`. In mode Async frames arrive while the
learner learns: it takes `(1 - wait)` of what it could take, and each worker adds its own frame rate.

Three rules keep the number from swinging. Workers are added above the target, but removed only if half of the target
would still be kept. They are removed only after five minutes with too many of them. A removal that proves wrong is not
repeated for half an hour.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final, NamedTuple

from rollfleet_api.frame_rate import STALE_S
from rollfleet_api.job import MAX_WORKERS, AutoscaleSpec, CollectorJob, Mode
from rollfleet_api.messages import LearnerPhase, LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.state.processes import Heartbeats
from rollfleet_api.state.snapshot import FRESH_S

WINDOW_S: Final = 60.0
"""The least time over which waits are averaged."""

WINDOW_BATCHES: Final = 8
"""The least number of batches over which waits are averaged: a slow learner waits long for one, then not at all."""

SCALE_DOWN_DELAY_S: Final = 300.0
"""Workers are removed after this time with too many of them."""

RETRY_LOWER_S: Final = 1800.0
"""A number of workers that proved too low is not tried again for this long."""

_LONGEST: Final = 1000  # samples, of one in five seconds
_AT_WORK: Final = frozenset({WorkerState.WAITING_FOR_WEIGHTS, WorkerState.WAITING_FOR_LEARNER, WorkerState.COLLECTING})


class Sample(NamedTuple):
    """The measurements of one moment.

    Attributes:
        time_s: The learner's clock.
        waited_s: Seconds that its loop has waited in this session.
        frames: Frames that it has taken.
        batches: Batches that it has taken.
        speed: Mean over the workers of their frames per second while they collect.
    """

    time_s: float
    waited_s: float
    frames: int
    batches: int
    speed: float


@dataclass(slots=True, kw_only=True)
class History:
    """The measurements of one job. Without them nothing is decided until there are new ones.

    Attributes:
        of: The number of workers and the learner's session to which samples and advice belong.
        samples: The samples in the window, newest last.
        advice: Times of the last minutes, and the right number of workers at each.
        went_down_s: The time of the last removal.
        floor: The least number of workers, until `floor_until_s`.
    """

    of: tuple[int, int] = (0, 0)
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_LONGEST))
    advice: deque[tuple[float, int]] = field(default_factory=deque)
    went_down_s: float = -inf
    floor: int = 0
    floor_until_s: float = -inf

    def forget(self) -> None:
        """Drop samples and advice: the job did not collect normally."""
        self.samples.clear()
        self.advice.clear()


def decide(job: CollectorJob, heartbeats: Heartbeats, history: History, now_s: float) -> int:
    """Decide the number of workers of a job, and update `history`, its earlier measurements."""
    scale = job.spec.autoscale
    if scale is None:
        return job.spec.workers
    wanted = _wanted(job, scale, heartbeats, history, now_s)
    return min(max(wanted, scale.min_workers), scale.max_workers)


def _wanted(job: CollectorJob, scale: AutoscaleSpec, heartbeats: Heartbeats, history: History, now_s: float) -> int:
    workers, learner = job.spec.workers, heartbeats.learner
    if learner is None or learner.phase is not LearnerPhase.RUN or now_s - learner.time_s > STALE_S:
        history.forget()
        return workers
    speeds = _speeds(heartbeats.workers, workers, now_s)
    if len(speeds) < workers or history.of != (workers, learner.session):  # earlier samples say nothing about others
        history.forget()
    history.of = (workers, learner.session)
    if len(speeds) < workers:
        return workers
    _sample(history.samples, learner, sum(speeds) / workers)
    advice = _advice(job, scale.target_wait, history.samples)
    if advice is None:
        return workers
    history.advice.append((now_s, advice))
    while len(history.advice) > 1 and history.advice[1][0] <= now_s - SCALE_DOWN_DELAY_S:
        history.advice.popleft()
    if advice > workers:
        if now_s - history.went_down_s < RETRY_LOWER_S:
            history.floor, history.floor_until_s = workers + 1, now_s + RETRY_LOWER_S
        return advice
    calm = now_s - history.advice[0][0] >= SCALE_DOWN_DELAY_S
    return _fewer(workers, history, now_s) if calm else workers


def _speeds(beats: Mapping[int, WorkerStatus], workers: int, now_s: float) -> list[float]:
    """Return the frames per second of each worker that works."""
    return [
        status.frames_per_second
        for index, status in beats.items()
        if index < workers and status.state in _AT_WORK and now_s - status.time_s < FRESH_S
    ]


def _sample(samples: deque[Sample], learner: LearnerStatus, speed: float) -> None:
    if samples and learner.time_s <= samples[-1].time_s:
        return
    newest = Sample(learner.time_s, learner.waited_s, learner.frames, learner.batches, speed)
    samples.append(newest)
    # One sample from before the window stays, so that the samples fill the window.
    while len(samples) > 2 and _fills_the_window(samples[1], newest):
        samples.popleft()


def _fills_the_window(first: Sample, last: Sample) -> bool:
    return last.time_s - first.time_s >= WINDOW_S and last.batches - first.batches >= WINDOW_BATCHES


def _advice(job: CollectorJob, target: float, samples: deque[Sample]) -> int | None:
    """Return the right number of workers over the window: at most twice as many as now, at least half as many.

    None: the window is not full yet.
    """
    first, last, workers = samples[0], samples[-1], job.spec.workers
    if not _fills_the_window(first, last):
        return None
    elapsed_s = last.time_s - first.time_s
    wait = min(max(0.0, (last.waited_s - first.waited_s) / elapsed_s), 0.999)
    if wait > target:
        if job.spec.mode is Mode.SYNC:
            right = workers * _odds(wait) / _odds(target)
        else:
            right = workers * (1 - target) / (1 - wait)
        return min(_whole(right), 2 * workers)
    if wait > target / 2:
        return workers
    if job.spec.mode is Mode.SYNC:
        right = workers * _odds(wait) / _odds(target / 2)
    else:
        speed = sum(sample.speed for sample in samples) / len(samples)
        taken = (last.frames - first.frames) / elapsed_s
        right = taken / (1 - wait) * (1 - target / 2) / speed if speed > 0 else workers
    return max(min(_whole(right), workers), ceil(workers / 2))


def _whole(workers: float) -> int:
    return ceil(min(workers, MAX_WORKERS) - 1e-6)  # rounding errors must not add a worker


def _odds(share: float) -> float:
    return share / (1 - share)


def _fewer(workers: int, history: History, now_s: float) -> int:
    advice = max(advice for _, advice in history.advice)
    if now_s < history.floor_until_s:
        advice = max(advice, history.floor)
    if advice >= workers:
        return workers
    history.went_down_s = now_s
    return advice
