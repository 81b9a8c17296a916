"""Members and problems of a job follow from heartbeats alone, without a clock."""

from dataclasses import replace

import pytest

from rollfleet.transports.roster import Roster
from rollfleet_api.messages import WorkerState, WorkerStatus

SUSPECT_AFTER_S = 4


def heartbeat(worker: int, state: WorkerState = WorkerState.COLLECTING, incarnation: int = 0) -> WorkerStatus:
    return WorkerStatus(worker=worker, incarnation=incarnation, state=state)


def roster() -> Roster:
    """Three workers, of which each was heard."""
    complete = Roster(3, suspect_after_s=SUSPECT_AFTER_S)
    for worker in range(3):
        complete.hear(heartbeat(worker))
    return complete


def pass_by(roster: Roster, seconds: int, *, heard: tuple[int, ...] = ()) -> None:
    for _ in range(seconds):
        roster.tick()
        for worker in heard:
            roster.hear(heartbeat(worker))


def test_worker_without_a_first_heartbeat_is_a_member() -> None:
    waiting = Roster(2, suspect_after_s=SUSPECT_AFTER_S)
    pass_by(waiting, 1000)
    assert waiting.members() == {0, 1}
    assert waiting.problems() == {}


def test_silent_worker_is_no_member_and_a_problem_until_its_next_heartbeat() -> None:
    three = roster()
    pass_by(three, SUSPECT_AFTER_S - 1, heard=(0, 1))
    assert three.members() == {0, 1, 2}
    pass_by(three, 1, heard=(0, 1))
    assert three.members() == {0, 1}
    assert three.problems() == {2: "worker 2 has sent no heartbeat for 4 s; its last state was Collecting"}
    three.hear(heartbeat(2, incarnation=1))
    assert three.members() == {0, 1, 2}
    assert three.problems() == {}


def test_heartbeats_of_members_leave_their_set_as_it_is() -> None:
    """So it costs a batch nothing, whatever the number of workers."""
    three = roster()
    members = three.members()
    pass_by(three, SUSPECT_AFTER_S, heard=(0, 1, 2))
    three.hear(heartbeat(1, WorkerState.WAITING_FOR_LEARNER))
    assert three.members() is members


def test_seconds_without_a_connection_do_not_count_as_silence() -> None:
    three = roster()
    pass_by(three, SUSPECT_AFTER_S - 1)
    three.forget_missed()  # after a lost connection
    pass_by(three, SUSPECT_AFTER_S - 1)
    assert three.members() == {0, 1, 2}


@pytest.mark.parametrize(
    ("status", "takes_part"),
    [
        (heartbeat(1, WorkerState.LEFT), False),
        (replace(heartbeat(1, WorkerState.FAILED), fatal=True, error="x"), False),
        (replace(heartbeat(1, WorkerState.FAILED), error="x"), True),  # it restarts
        (heartbeat(1, WorkerState.STARTING), True),
        (heartbeat(1, WorkerState.WAITING_FOR_LEARNER), True),
    ],
    ids=lambda value: str(getattr(value, "state", value)),
)
def test_worker_that_left_or_failed_for_good_is_no_member(status: WorkerStatus, takes_part: bool) -> None:
    three = roster()
    three.hear(status)
    assert (1 in three.members()) is takes_part


def test_worker_that_a_smaller_job_gave_up_is_no_member() -> None:
    three = roster()
    three.resize(1)
    assert three.members() == {0}
    pass_by(three, 100, heard=(0,))
    assert three.problems() == {}
    three.resize(3)
    assert three.members() == {0}  # until their first heartbeat


@pytest.mark.parametrize(
    ("error", "reason"), [("Traceback ...\n  x\nValueError: broken\n", "ValueError: broken"), ("\n", "no reason given")]
)
def test_last_line_of_a_failure_is_a_problem(error: str, reason: str) -> None:
    three = roster()
    three.hear(replace(heartbeat(0, WorkerState.FAILED), error=error))
    assert three.problems() == {0: f"worker 0 failed: {reason}"}
