"""Control messages: the version that a worker needs, and which of two messages is newer."""

from dataclasses import replace
from itertools import pairwise

from rollfleet_api.messages import Control, LearnerPhase, Progress


def control(session: int = 1, round_: int = 0, version: int = 0, **more: object) -> Control:
    return Control(session=session, phase=LearnerPhase.RUN, round=round_, version=version, **more)  # type: ignore[arg-type]


def test_a_worker_needs_its_own_version_if_that_one_is_newer() -> None:
    message = control(version=5, some=((1, 7), (2, 3)))
    assert [message.version_for(worker) for worker in range(3)] == [5, 7, 5]


def test_session_counts_before_number() -> None:
    for older, newer in pairwise([control(1, number=1), control(1, 5, 9, number=2), control(2)]):
        assert newer.order > older.order
    assert control(1, 2, number=3).order == control(1, 3, number=3).order


def test_progress_is_what_a_successor_continues() -> None:
    message = control(3, 5, 7, newest=9, frames=64, batches=2)
    assert message.progress == Progress(session=3, target=7, version=9, frames=64, batches=2)
    assert replace(message, phase=LearnerPhase.COMPLETE).progress.complete
