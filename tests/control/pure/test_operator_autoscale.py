"""How many workers a job gets, seen over virtual hours: fast and slow learners, and what stands in the way."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from tests.control.pure.scene import a_job

from rollfleet_api.job import CollectorJob, Mode
from rollfleet_api.messages import LearnerPhase, LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.state.processes import Heartbeats
from rollfleet_operator.autoscale import RETRY_LOWER_S, SCALE_DOWN_DELAY_S, WINDOW_S, History, decide

LOOK_S = 5.0
HOUR_S = 3600.0
START_S = 20.0  # that a worker takes until it collects
FRAMES = 1000  # of a batch
SCALE = {"minWorkers": 1, "maxWorkers": 32, "targetWait": 0.1}


@dataclass
class World:
    """A learner and its workers in virtual time.

    Attributes:
        job: The job, as it is now.
        demand: Frames a second that the learner takes, if it never waits.
        speed: Frames a second of one worker.
        overhead: The share of a worker's time that is lost between batches; its heartbeat does not count it.
        noise: How much demand and speed vary, from one look to the next.
        sizes: Numbers of workers that there were, and from when on.
    """

    job: CollectorJob
    demand: float = 1000.0
    speed: float = 200.0
    overhead: float = 0.0
    noise: float = 0.0
    now_s: float = 1_800_000_000.0
    history: History = field(default_factory=History)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    phase: LearnerPhase = LearnerPhase.RUN

    def __post_init__(self) -> None:
        self.random = Random(0)
        self.began_s = self.now_s
        self.waited_s = self.frames = 0.0
        self.came_s = [self.now_s] * self.workers

    @property
    def workers(self) -> int:
        return self.job.spec.workers

    def wait(self, workers: int) -> float:
        """The share of its time for which this learner waits for so many workers."""
        supply = workers * self.speed * (1 - self.overhead)
        if self.job.spec.mode is Mode.SYNC:  # collect a batch, then learn from it
            return (1 / supply) / (1 / supply + 1 / self.demand)
        return max(0.0, 1 - supply / self.demand)

    def run(self, seconds: float) -> "World":
        """Let so much time pass, and do what is decided."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += LOOK_S
            self._work()
            wanted = decide(self.job, self.heard(), self.history, self.now_s)
            if wanted != self.workers:
                self.resize(wanted)
        return self

    def resize(self, workers: int) -> None:
        self.came_s = self.came_s[:workers] + [self.now_s] * (workers - len(self.came_s))
        self.job = self.job.model_copy(update={"spec": self.job.spec.model_copy(update={"workers": workers})})
        self.sizes.append((self.now_s - self.began_s, workers))

    def _work(self) -> None:
        up = sum(self._collects(index) for index in range(self.workers))
        wait = self.wait(up) if up else 1.0
        wait = min(1.0, max(0.0, wait + self.random.uniform(-self.noise, self.noise) * min(1.0, 10 * wait)))
        self.waited_s += wait * LOOK_S
        if up:
            self.frames += (1 - wait) * self.demand * LOOK_S

    def _collects(self, index: int) -> bool:
        return self.now_s - self.came_s[index] >= START_S

    def heard(self) -> Heartbeats:
        speed = self.speed * (1 + self.random.uniform(-self.noise, self.noise))
        collecting = [index for index in range(self.workers) if self._collects(index)]
        beat = WorkerStatus(
            worker=0, incarnation=0, state=WorkerState.COLLECTING, frames_per_second=speed, time_s=self.now_s
        )
        learner = LearnerStatus(
            session=1,
            phase=self.phase,
            frames=int(self.frames),
            batches=int(self.frames / FRAMES),
            waited_s=self.waited_s,
            time_s=self.now_s,
        )
        return Heartbeats(workers={index: replace(beat, worker=index) for index in collecting}, learner=learner)


def world(mode: str = "Async", workers: int = 1, autoscale: Any = SCALE, **settings: Any) -> World:
    return World(a_job(mode=mode, workers=workers, autoscale=autoscale), **settings)


both_modes = pytest.mark.parametrize("mode", ["Async", "Sync"])


@both_modes
@pytest.mark.parametrize("workers", [1, 32])
@pytest.mark.parametrize("demand", [150.0, 1000.0, 2333.0])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_number_settles_where_the_target_is_just_kept(mode: str, workers: int, demand: float, noise: float) -> None:
    # In mode Sync these learners learn from a batch faster than 32 workers collect one: ask for less there.
    scale = SCALE | {"targetWait": 0.3 if mode == "Sync" else 0.1}
    fleet = world(mode, workers, scale, demand=demand, noise=noise).run(HOUR_S)
    before = len(fleet.sizes)
    fleet.run(2 * HOUR_S)
    settled = fleet.workers
    assert len(fleet.sizes) - before <= bool(noise)  # chance may add one more; nothing swings
    assert fleet.wait(settled) <= scale["targetWait"] * (1 + 2 * noise)
    fewer = settled - 1
    assert fewer == 0 or fleet.wait(fewer) > scale["targetWait"] / 2 * (1 - 2 * noise)


@both_modes
def test_number_follows_a_learner_that_gets_faster_and_slower(mode: str) -> None:
    scale = SCALE | {"targetWait": 0.3 if mode == "Sync" else 0.1}
    fleet, settled = world(mode, 4, scale, demand=400.0, noise=0.05), []
    for demand in (400.0, 2000.0, 400.0):
        fleet.demand = demand
        settled.append(fleet.run(2 * HOUR_S).workers)
    assert settled[0] < settled[1] > settled[2]
    assert fleet.wait(settled[2]) < scale["targetWait"]
    numbers = [workers for _, workers in fleet.sizes]
    turns = sum((b > a) != (c > b) for a, b, c in zip(numbers, numbers[1:], numbers[2:], strict=False))
    assert turns <= 3  # once for each change of pace, and once more by chance


def test_hungry_learner_gets_twice_the_workers_every_minute_or_two() -> None:
    fleet = world(demand=6000.0).run(10 * 60)
    assert [workers for _, workers in fleet.sizes] == [2, 4, 8, 16, 27]
    gaps = [after - before for (before, _), (after, _) in pairwise(fleet.sizes)]
    assert all(WINDOW_S <= gap <= WINDOW_S + START_S + 2 * LOOK_S for gap in gaps)


def test_workers_are_removed_after_minutes_and_half_at_a_time() -> None:
    fleet = world(workers=32, demand=200.0).run(HOUR_S)
    assert [workers for _, workers in fleet.sizes] == [16, 8, 4, 2, 1]
    assert all(after - before >= SCALE_DOWN_DELAY_S for (before, _), (after, _) in pairwise(fleet.sizes))


def test_short_rest_of_the_learner_removes_no_workers() -> None:
    fleet = world(workers=5, demand=1000.0).run(HOUR_S)
    fleet.demand = 1.0  # it evaluates
    fleet.run(SCALE_DOWN_DELAY_S - WINDOW_S)
    fleet.demand = 1000.0
    fleet.run(HOUR_S)
    assert fleet.sizes == []


@both_modes
def test_bounds_hold(mode: str) -> None:
    scale = SCALE | {"minWorkers": 2, "maxWorkers": 5}
    hungry = world(mode, 3, scale, demand=1e6).run(HOUR_S)
    idle = world(mode, 3, scale, demand=20.0).run(3 * HOUR_S)
    assert hungry.workers == 5
    assert idle.workers == 2
    assert all(2 <= workers <= 5 for _, workers in hungry.sizes + idle.sizes)


def test_the_history_of_a_job_that_wants_more_than_its_most_workers_does_not_grow() -> None:
    fleet = world(workers=4, autoscale=SCALE | {"maxWorkers": 4}, demand=1e6).run(HOUR_S)
    kept = len(fleet.history.advice)
    assert len(fleet.run(HOUR_S).history.advice) == kept > 0


@pytest.mark.parametrize(("workers", "within"), [(1, 4), (50, 8)])
def test_number_beyond_the_bounds_is_corrected_at_once(workers: int, within: int) -> None:
    fleet = world(workers=workers, autoscale={"minWorkers": 4, "maxWorkers": 8}, phase=LearnerPhase.PAUSE).run(LOOK_S)
    assert fleet.workers == within


def test_autoscale_continues_from_a_number_that_a_user_sets() -> None:
    fleet = world(workers=5, demand=1000.0).run(HOUR_S)
    fleet.resize(20)
    fleet.run(SCALE_DOWN_DELAY_S)
    assert fleet.workers == 20
    fleet.run(2 * HOUR_S)
    assert fleet.workers == 5


def test_wrong_removal_is_not_repeated_for_half_an_hour() -> None:
    # Workers lose time that they do not tell of, so that four look like enough for what takes five.
    fleet = world(workers=6, demand=800.0, speed=200.0, overhead=0.2).run(8 * HOUR_S)
    downs = [at for (_, before), (at, after) in pairwise(fleet.sizes) if after < before]
    assert fleet.wait(5) == 0.0
    assert {workers for _, workers in fleet.sizes} <= {4, 5}
    assert all(later - earlier > RETRY_LOWER_S for earlier, later in pairwise(downs))


def test_missing_worker_decides_nothing() -> None:
    fleet = world(workers=4)
    fleet.came_s[1] = fleet.now_s + 10 * HOUR_S
    assert fleet.run(HOUR_S).workers == 4


@pytest.mark.parametrize("demand", [1.0, 1e6])
def test_nothing_is_decided_without_a_learner_that_learns(demand: float) -> None:
    assert world(workers=4, demand=demand, phase=LearnerPhase.PAUSE).run(HOUR_S).workers == 4


def test_learner_that_vanished_decides_nothing() -> None:
    fleet = world(workers=4, demand=1e6)
    heard = fleet.heard()
    for later_s in range(0, 3600, 5):
        assert decide(fleet.job, heard, fleet.history, fleet.now_s + later_s) == 4


def test_job_without_autoscale_is_left_alone() -> None:
    assert world(workers=3, autoscale=None, demand=1e6).run(HOUR_S).sizes == []


def test_batches_of_minutes_are_averaged_over_several() -> None:
    # Between two batches the learner waits not at all, then for minutes: one minute of it would say anything.
    fleet = world("Sync", 4, SCALE | {"targetWait": 0.6}, demand=2.0, speed=0.5)
    period_s = 2 * FRAMES / fleet.demand
    for _ in range(40):
        for waits in (True, False):
            until_s = fleet.now_s + period_s / 2
            while fleet.now_s < until_s:
                fleet.now_s += LOOK_S
                fleet.waited_s += LOOK_S * waits
                fleet.frames += 0 if waits else LOOK_S * fleet.demand
                assert decide(fleet.job, fleet.heard(), fleet.history, fleet.now_s) == 4
