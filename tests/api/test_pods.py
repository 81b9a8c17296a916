"""What a pod says about itself."""

from typing import Any

import pytest
from tests.sdk.cluster.objects import crash, pod, waiting

from rollfleet_api.pods import Pod
from rollfleet_api.views import age

FAILED: Any = {"terminated": {"exitCode": 9}}


def test_a_pod_that_does_not_run_says_why() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
    seen = [
        crash(0, 1, "Traceback\nImportError: no module\n", age_s=9),
        waiting(1, "ImagePullBackOff", "no such image"),
        pod(2, node="", phase="Pending", conditions=[unscheduled]),
        pod(3, phase="Pending"),
    ]
    assert [(each.state, each.message) for each in seen] == [
        ("Failed, code 1", "ImportError: no module"),
        ("ImagePullBackOff", "no such image"),
        ("Unschedulable", "0/4 nodes"),
        ("Pending", ""),
    ]


def test_other_containers_of_a_pod_decide_nothing() -> None:
    def seen(phase: str, **states: Any) -> Pod:
        containers = [{"name": name, "state": state} for name, state in sorted(states.items())]
        return pod(0, phase=phase, containerStatuses=containers, initContainerStatuses=[{"state": FAILED}])

    runs: Any = {"running": {}}
    refused = {"waiting": {"reason": "ImagePullBackOff", "message": "no image"}}
    working = [seen("Running", a=FAILED, worker=runs, z=FAILED), seen("Pending", a=refused, worker=runs)]
    assert [(each.running, each.crash, each.done) for each in working] == [(True, None, False)] * 2
    assert working[1].message == "no image"
    exited = {"terminated": {"exitCode": 0}}
    ended = [seen("Running", a=runs, worker=exited), seen("Failed", a=FAILED, worker=exited)]
    assert [(each.running, each.crash, each.done) for each in ended] == [(False, None, True)] * 2
    crashed = seen("Running", a=exited, worker=FAILED, z=runs)
    assert (crashed.running, crashed.done, crashed.counts, crashed.state) == (False, False, True, "Failed, code 9")


def test_a_pod_names_an_init_container_that_failed_but_no_sidecar_that_its_end_stopped() -> None:
    def seen(**state: Any) -> str:
        inits = [("ready", 0), ("fetch", 2)]
        failed = [{"name": name, "state": {"terminated": {"exitCode": code}}} for name, code in inits]
        return pod(phase="Failed", initContainerStatuses=failed, containerStatuses=[{"state": state}]).failed_init

    assert seen(waiting={"reason": "PodInitializing"}) == "fetch"
    assert seen(terminated={"exitCode": 1}) == ""


def test_a_pod_that_no_scheduler_has_seen_names_its_scheduler() -> None:
    placed = {"type": "PodScheduled", "status": "True"}
    seen = [pod(node="", scheduler=each, phase="Pending") for each in ("default-scheduler", "other")]
    seen += [pod(node="node-1", scheduler="other"), pod(node="", scheduler="other", conditions=[placed])]
    assert [("`other`" in each.unplaced, each.state == "Unschedulable") for each in seen] == [
        (False, False),
        (True, True),
        (False, False),
        (False, False),
    ]


@pytest.mark.parametrize(("seconds", "shown"), [(-1, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (200_000, "2d")])
def test_ages_are_short(seconds: float, shown: str) -> None:
    assert age(seconds) == shown
