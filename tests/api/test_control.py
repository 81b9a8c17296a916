"""Control messages: the version that a worker needs, and which of two messages is newer."""

from itertools import pairwise

from rollfleet_api.messages import Control, LearnerPhase


def control(session: int = 1, round_: int = 0, version: int = 0, **more: object) -> Control:
    return Control(session=session, phase=LearnerPhase.RUN, round=round_, version=version, **more)  # type: ignore[arg-type]


def test_a_worker_needs_its_own_version_if_that_one_is_newer() -> None:
    message = control(version=5, some=((1, 7), (2, 3)))
    assert [message.version_for(worker) for worker in range(3)] == [5, 7, 5]


def test_session_counts_before_round_and_round_before_version() -> None:
    for older, newer in pairwise([control(1, 1, 9), control(1, 2, 3), control(1, 2, 4), control(2)]):
        assert newer.is_newer_than(older)
        assert not older.is_newer_than(newer)


def test_a_repeated_message_is_not_newer() -> None:
    assert not control(1, 2, 3).is_newer_than(control(1, 2, 3))
