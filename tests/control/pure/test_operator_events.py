"""What is told as events."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rollfleet_operator.events import QUIET_S, Event, EventThrottle, Severity, event, events_between
from rollfleet_operator.status import status

if TYPE_CHECKING:
    from tests.control.pure.scene import Scene

MakeScene = Callable[..., "Scene"]


def told(before: "Scene", after: "Scene") -> list[tuple[str, str]]:
    found = events_between(status(before.job, before.snapshot), status(after.job, after.snapshot))
    return [(each.severity.value, each.reason) for each in found]


def test_nothing_is_told_where_nothing_changed(scene: MakeScene) -> None:
    assert told(scene().running(0), scene().running(0)) == []


def test_trouble_is_told_when_it_comes_and_when_its_reason_changes(scene: MakeScene) -> None:
    image = scene().waiting(0, reason="ErrImagePull", message="not found")
    backoff = scene().waiting(0, reason="ImagePullBackOff", message="backing off")
    node = scene().unplaced(0, why="no node")
    assert told(scene(), image) == [("Warning", "ImagePullFailed")]
    assert told(image, backoff) == []
    assert told(image, node) == [("Warning", "Unschedulable")]
    assert told(node, scene()) == []


def test_suspension_and_resumption_are_told(scene: MakeScene) -> None:
    before = scene()
    suspended = before.edited(suspend=True)
    assert told(before, suspended) == [("Normal", "Suspended")]
    assert told(suspended, before) == [("Normal", "Resumed")]


def test_scaling_is_told(scene: MakeScene) -> None:
    before = scene(workers=2)
    assert told(before, before.edited(workers=4)) == [("Normal", "Scaled")]


def test_end_is_told(scene: MakeScene) -> None:
    before = scene()
    assert ("Normal", "Complete") in told(before, before.ended("Complete"))
    assert ("Warning", "WorkerHopeless") in told(before, before.crashed(code=2).ended("Failed"))


def test_the_same_is_not_told_again_at_once() -> None:
    quiet, found = EventThrottle(), [Event(Severity.WARNING, "WorkerCrashed", "worker 1 ...")]
    assert quiet.admit(found, 0.0) == found
    assert quiet.admit(found, QUIET_S - 1) == []
    assert quiet.admit(found, QUIET_S) == found


def test_event_names_the_job(scene: MakeScene) -> None:
    job = scene().job
    made = event(job, Event(Severity.NORMAL, "Scaled", "x" * 5000), 0.0)
    assert made["involvedObject"]["uid"] == job.metadata.uid
    assert len(made["message"]) == 1024
