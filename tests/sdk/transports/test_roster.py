"""Who takes part in a round, and who is in trouble: told by heartbeats alone, and by no clock."""

from dataclasses import replace

import pytest

from rollfleet.transports.roster import Roster
from rollfleet_api.messages import WorkerState, WorkerStatus

SUSPECT_AFTER_S = 4


def heartbeat(worker: int, state: WorkerState = WorkerState.COLLECTING, incarnation: int = 0) -> WorkerStatus:
    return replace(WorkerStatus.starting(worker, incarnation), state=state)


def roster(workers: int = 3) -> Roster:
    all_there = Roster(workers, suspect_after_s=SUSPECT_AFTER_S)
    for worker in range(workers):
        all_there.hear(heartbeat(worker))
    return all_there


def pass_by(roster: Roster, seconds: int, *, heard: tuple[int, ...] = ()) -> None:
    for _ in range(seconds):
        roster.tick()
        for worker in heard:
            roster.hear(heartbeat(worker))


def test_workers_that_were_never_heard_of_are_waited_for() -> None:
    waiting = Roster(2, suspect_after_s=SUSPECT_AFTER_S)
    pass_by(waiting, 1000)
    assert waiting.members() == {0, 1}
    assert waiting.troubles() == {}


def test_a_worker_that_falls_silent_is_not_waited_for_and_is_named_until_it_is_back() -> None:
    three = roster()
    pass_by(three, SUSPECT_AFTER_S - 1, heard=(0, 1))
    assert three.members() == {0, 1, 2}
    pass_by(three, 1, heard=(0, 1))
    assert three.members() == {0, 1}
    assert three.troubles() == {2: "worker 2 has not been heard of for 4 s; it was Collecting"}
    three.hear(heartbeat(2, incarnation=1))
    assert three.members() == {0, 1, 2}
    assert three.troubles() == {}


def test_whoever_could_hear_nothing_takes_nobody_for_dead() -> None:
    three = roster()
    pass_by(three, SUSPECT_AFTER_S - 1)
    three.begin_anew()  # after a cut
    pass_by(three, SUSPECT_AFTER_S - 1)
    assert three.members() == {0, 1, 2}


@pytest.mark.parametrize(
    ("status", "takes_part"),
    [
        (heartbeat(1, WorkerState.LEFT), False),
        (replace(heartbeat(1, WorkerState.FAILED), fatal=True, error="x"), False),
        (replace(heartbeat(1, WorkerState.FAILED), error="x"), True),  # it is started again
        (heartbeat(1, WorkerState.STARTING), True),
        (heartbeat(1, WorkerState.WAITING_FOR_LEARNER), True),
    ],
    ids=lambda value: str(getattr(value, "state", value)),
)
def test_who_left_or_failed_for_good_is_not_waited_for(status: WorkerStatus, takes_part: bool) -> None:
    three = roster()
    three.hear(status)
    assert (1 in three.members()) is takes_part


def test_a_job_that_grows_waits_for_new_workers_once_they_are_heard_of() -> None:
    three = roster()
    three.resize(5)
    assert three.members() == {0, 1, 2}
    three.hear(heartbeat(4))
    assert three.members() == {0, 1, 2, 4}


def test_a_worker_that_the_job_never_had_is_not_remembered() -> None:
    three = roster()
    assert not three.hear(heartbeat(3))
    assert set(three.statuses()) == {0, 1, 2}


def test_a_job_that_shrinks_waits_no_longer_for_those_it_gave_up() -> None:
    three = roster()
    three.resize(1)
    assert three.members() == {0}
    pass_by(three, 100, heard=(0,))
    assert three.troubles() == {}
    three.resize(3)
    assert three.members() == {0}  # until they are heard of


def test_a_step_that_hangs_is_told_with_the_worker_and_the_seconds() -> None:
    three = roster()
    three.hear(replace(heartbeat(2), in_step_s=42.3))
    assert three.troubles() == {2: "worker 2 has been in one environment step for 42 s"}
    assert three.members() == {0, 1, 2}


def test_the_last_line_of_a_failure_is_told() -> None:
    three = roster()
    three.hear(replace(heartbeat(0, WorkerState.FAILED), error="Traceback ...\n  x\nValueError: broken\n"))
    assert three.troubles() == {0: "worker 0 failed: ValueError: broken"}


def test_a_life_that_is_new_is_told() -> None:
    fresh = Roster(1, suspect_after_s=SUSPECT_AFTER_S)
    assert fresh.hear(heartbeat(0))
    assert not fresh.hear(heartbeat(0))
    assert fresh.hear(heartbeat(0, incarnation=1))
