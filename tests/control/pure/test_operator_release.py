"""Which pods are let go of, so that their successors start at once."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rollfleet_operator.release import Release, releases

if TYPE_CHECKING:
    from tests.control.pure.scene import Scene

MakeScene = Callable[..., "Scene"]


def test_deleted_worker_that_has_ended_is_released(scene: MakeScene) -> None:
    found = scene().running(0).crashed(1, code=143).deleted()
    assert [release.pod for release in releases(found.observed)] == [found.pods[1]["metadata"]["name"]]


def test_worker_of_a_drained_node_is_released(scene: MakeScene) -> None:
    drained = {"type": "DisruptionTarget", "status": "True"}
    assert list(releases(scene().pod(0, phase="Failed", conditions=[drained]).deleted().observed))


def test_only_the_job_controllers_finalizer_is_taken_off(scene: MakeScene) -> None:
    found = scene().crashed(0, code=143).deleted()
    found.pods[0]["metadata"]["finalizers"].append("theirs")
    assert list(releases(found.observed)) == [Release(found.pods[0]["metadata"]["name"], "pod-0", "7", ("theirs",))]


def test_deleted_worker_that_is_still_ending_is_not_released(scene: MakeScene) -> None:
    drained = {"type": "DisruptionTarget", "status": "True"}
    assert not list(releases(scene().pod(0, phase="Running", conditions=[drained]).deleted().observed))


def test_drained_worker_that_succeeded_is_counted_by_the_job_controller(scene: MakeScene) -> None:
    drained = {"type": "DisruptionTarget", "status": "True"}
    assert not list(releases(scene().pod(0, phase="Succeeded", conditions=[drained]).deleted().observed))


def test_crash_counts_as_a_restart(scene: MakeScene) -> None:
    assert not list(releases(scene().crashed(0, code=1).deleted().observed))
    assert not list(releases(scene().crashed(0, code=143).observed))
