"""What a pod says about itself."""

import pytest
from tests.sdk.cluster.objects import crash, pod, waiting

from rollfleet_api.views import age


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


@pytest.mark.parametrize(("seconds", "shown"), [(-1, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (200_000, "2d")])
def test_ages_are_short(seconds: float, shown: str) -> None:
    assert age(seconds) == shown
