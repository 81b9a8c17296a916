"""Events: the changes that are reported."""

import pytest
from tests.control.pure.scene import Scene, scene

from rollfleet_api.messages import LearnerPhase
from rollfleet_api.state.status import status
from rollfleet_operator.events import QUIET_S, Event, EventThrottle, event, events_between


def status_of(before: Scene, after: Scene) -> list[tuple[str, str]]:
    found = [*events_between(status(before.snapshot), status(after.snapshot))]
    return [(each.severity, each.reason) for each in found]


def test_problem_is_reported_when_it_starts_and_when_its_reason_changes() -> None:
    image = scene().waiting(0, reason="ErrImagePull", message="not found")
    backoff = scene().waiting(0, reason="ImagePullBackOff", message="backing off")
    node = scene().unplaced(0, why="no node")
    assert status_of(scene(), image) == [("Warning", "ImagePullFailed")]
    assert status_of(image, backoff) == []
    assert status_of(image, node) == [("Warning", "Unschedulable")]
    assert status_of(node, scene()) == []


JOB = scene(workers=2)


@pytest.mark.parametrize(
    ("before", "after", "event"),
    [
        (JOB, JOB.edited(suspend=True), ("Normal", "Suspended")),
        (JOB.edited(suspend=True), JOB, ("Normal", "Resumed")),
        (JOB, JOB.edited(workers=4), ("Normal", "Scaled")),
        (JOB, JOB.with_heartbeats(phase=LearnerPhase.COMPLETE), ("Normal", "Complete")),
        (JOB, JOB.crashed(code=2).ended("Failed"), ("Warning", "WorkerFailed")),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_change_is_reported(before: Scene, after: Scene, event: tuple[str, str]) -> None:
    assert status_of(before, after) == [event]
    assert status_of(after, after) == []


def test_event_is_not_repeated_at_once() -> None:
    quiet, found = EventThrottle(), [Event("Warning", "WorkerCrashed", "worker 1 ...")]
    assert quiet.admit(found, 0.0) == found
    assert quiet.admit(found, QUIET_S - 1) == []
    assert quiet.admit(found, QUIET_S) == found


def test_event_names_the_job() -> None:
    job = scene().job
    created = event(job, Event("Normal", "Scaled", "x" * 5000), 0.0)
    assert created["involvedObject"]["uid"] == job.metadata.uid
    assert len(created["message"]) == 1024
