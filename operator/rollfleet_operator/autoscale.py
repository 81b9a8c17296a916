"""How many workers a job is to have, where its spec leaves that to the operator: a pure function of what was heard.

The target is a share of the learner's time: what its loop may wait for data. What another number of workers would do
to it follows from the mode. In mode Sync the loop waits while a round is collected, and a round of so many frames takes
half as long with twice the workers: `wait / (1 - wait)` goes with `1 / workers`. In mode Async frames come while the
learner learns: it takes `(1 - wait)` of what it could take, and a worker brings as many frames as it says.

Three things keep the number from swinging. Workers are added above the target, but taken away only where half of it
would still be kept; what is taken away was too much for five minutes on end; and where that was a mistake, it is not
made again for half an hour.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final, NamedTuple

from rollfleet_api.job import AutoscaleSpec, CollectorJob, Mode
from rollfleet_api.messages import LearnerPhase, LearnerStatus, WorkerState, WorkerStatus
from rollfleet_operator.frame_rate import STALE_S
from rollfleet_operator.nats_port import Heartbeats
from rollfleet_operator.status import FRESH_S

WINDOW_S: Final = 60.0
"""What is decided by is an average of at least so long."""

WINDOW_BATCHES: Final = 8
"""And over at least so many batches: a learner that takes minutes for each waits for minutes, and then not at all."""

CALM_S: Final = 300.0
"""Workers are taken away if there were too many of them for so long."""

REGRET_S: Final = 1800.0
"""A number that was gone down to and was too low is not gone down to for so long."""

PATIENCE_S: Final = 300.0
"""Workers that have not come after so long are not waited for any more; nor asked for, for twice as long."""

_LONGEST: Final = 1000  # samples, of one in five seconds
_AT_WORK: Final = frozenset({WorkerState.WAITING_FOR_WEIGHTS, WorkerState.WAITING_FOR_LEARNER, WorkerState.COLLECTING})


class Sample(NamedTuple):
    """What was heard at one moment.

    Attributes:
        time_s: By the learner's clock.
        waited_s: For how long its loop has waited, in this session.
        frames: That it has taken.
        batches: That it has taken.
        speed: Frames a second of one worker while it collects, on average over all.
    """

    time_s: float
    waited_s: float
    frames: int
    batches: int
    speed: float


@dataclass(slots=True, kw_only=True)
class History:
    """What is remembered of one job. Without it nothing is decided until there is one again.

    Attributes:
        of: The number of workers and the session of the learner that samples and advice are of.
        since_s: Since when.
        samples: The window, the newest last.
        advice: What would have been right at which time, over the last minutes.
        went_down_s: When workers were last taken away.
        floor: Not to be gone below, until `floor_until_s`.
        ceiling: Not to be gone above, until `ceiling_until_s`.
    """

    of: tuple[int, int] = (0, 0)
    since_s: float = 0.0
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_LONGEST))
    advice: deque[tuple[float, int]] = field(default_factory=deque)
    went_down_s: float = -inf
    floor: int = 0
    floor_until_s: float = -inf
    ceiling: int = 0
    ceiling_until_s: float = -inf

    def begin(self, workers: int, session: int, now_s: float) -> None:
        """What was heard of other workers, or by another learner, says nothing of these."""
        if self.of != (workers, session):
            self.of, self.since_s = (workers, session), now_s
            self.forget()

    def forget(self) -> None:
        """Something else than work went on: average over none of it."""
        self.samples.clear()
        self.advice.clear()


def decide(job: CollectorJob, heartbeats: Heartbeats, history: History, now_s: float) -> int:
    """How many workers the job is to have from now on.

    Args:
        job: The job, as it is now.
        heartbeats: What was heard.
        history: What was heard before; it is brought up to date.
        now_s: The time.
    """
    scale = job.spec.autoscale
    if scale is None:
        return job.spec.workers
    wanted = _wanted(job, scale, heartbeats, history, now_s)
    return min(max(wanted, scale.min_workers), scale.max_workers)


def _wanted(job: CollectorJob, scale: AutoscaleSpec, heartbeats: Heartbeats, history: History, now_s: float) -> int:
    workers, learner = job.spec.workers, heartbeats.learner
    told = heartbeats.control is not None and heartbeats.control.phase is LearnerPhase.RUN
    if learner is None or learner.waited_s is None or not told or now_s - learner.time_s > STALE_S:
        history.forget()
        return workers
    history.begin(workers, learner.session, now_s)
    at_work = _at_work(heartbeats.workers, workers, now_s)
    if len(at_work) < workers:
        history.forget()
        return _without_those_that_do_not_come(job, at_work, history, now_s)
    _sample(history.samples, learner, learner.waited_s, sum(at_work.values()) / workers)
    advice = _advice(job, scale.target_wait, history.samples)
    if advice is None:
        return workers
    history.advice.append((now_s, advice))
    if advice > workers:
        return _more(workers, advice, history, now_s)
    while len(history.advice) > 1 and history.advice[1][0] <= now_s - CALM_S:
        history.advice.popleft()
    calm = now_s - history.advice[0][0] >= CALM_S
    return _fewer(workers, history, now_s) if calm else workers


def _at_work(heard: Mapping[int, WorkerStatus], workers: int, now_s: float) -> dict[int, float]:
    """Workers that do what they are there for: index and frames a second."""
    return {
        index: status.frames_per_second
        for index, status in heard.items()
        if index < workers and status.state in _AT_WORK and now_s - status.time_s < FRESH_S
    }


def _without_those_that_do_not_come(
    job: CollectorJob, at_work: Mapping[int, float], history: History, now_s: float
) -> int:
    """There may be no room for them; and a worker that waits for a node for too long fails its job.

    Only the last ones can be taken away: one that is missing among the others has other troubles.
    """
    deadline_s = job.spec.failure.pending_deadline_seconds or inf
    came = max(at_work, default=-1) + 1
    if not came or came == job.spec.workers or now_s - history.since_s < min(PATIENCE_S, deadline_s / 2):
        return job.spec.workers
    history.ceiling, history.ceiling_until_s = came, now_s + 2 * PATIENCE_S
    return came


def _sample(samples: deque[Sample], learner: LearnerStatus, waited_s: float, speed: float) -> None:
    if samples and learner.time_s <= samples[-1].time_s:
        return
    newest = Sample(learner.time_s, waited_s, learner.frames, learner.batches, speed)
    samples.append(newest)
    # One that is older than the window stays, so that the window is filled.
    while len(samples) > 2 and _fills_the_window(samples[1], newest):
        samples.popleft()


def _fills_the_window(first: Sample, last: Sample) -> bool:
    return last.time_s - first.time_s >= WINDOW_S and last.batches - first.batches >= WINDOW_BATCHES


def _advice(job: CollectorJob, target: float, samples: deque[Sample]) -> int | None:
    """How many workers would have been right over the window: twice as many at most, half as many at least.

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
    return ceil(workers - 1e-6)  # what is exactly enough, but for rounding, is enough


def _odds(share: float) -> float:
    return share / (1 - share)


def _more(workers: int, advice: int, history: History, now_s: float) -> int:
    if now_s < history.ceiling_until_s:
        advice = max(workers, min(advice, history.ceiling))
    if advice > workers and now_s - history.went_down_s < REGRET_S:
        history.floor, history.floor_until_s = workers + 1, now_s + REGRET_S
    return advice


def _fewer(workers: int, history: History, now_s: float) -> int:
    advice = max(advice for _, advice in history.advice)
    if now_s < history.floor_until_s:
        advice = max(advice, history.floor)
    if advice >= workers:
        return workers
    history.went_down_s = now_s
    return advice
