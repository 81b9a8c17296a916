"""Jobs that come and go beside one that trains. `tests/control/wire/test_churn.py` looks into NATS meanwhile."""

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cluster.lab import Lab, Release

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

WAVES, AT_ONCE = 5, 10
GAP_S = 1.0  # on a calm machine; where others wait for the cores, too, all takes longer
MADE = "jobs,secrets,serviceaccounts,networkpolicies,pods"


def guest(name: str) -> dict[str, Any]:
    """A job whose worker only sleeps, so that it takes no CPU from the others."""
    sleeping = {"name": "worker", "command": ["sleep", "infinity"]}
    return {
        "apiVersion": "rollfleet.dev/v1alpha1",
        "kind": "CollectorJob",
        "metadata": {"name": name},
        "spec": {
            "env": {"id": "CartPole-v1"},
            "policy": {"random": {}},
            "collect": {"framesPerBatch": 64},
            "template": {"spec": {"containers": [sleeping], "terminationGracePeriodSeconds": 1}},
        },
    }


def test_fifty_jobs_come_and_go_and_leave_nothing_and_disturb_no_other(
    lab: "Lab", release: "Release", counting: dict[str, Any]
) -> None:
    def objects() -> set[str]:
        return set(lab.kubectl("get", MADE, "--output=name").split())

    lab.apply(counting)
    lab.wait_for_workers("counting", 2)
    lab.wait_for_frames("counting", more_than=10 * 512)
    before, installed = objects(), release.kubectl("get", "pods", "--output=name")
    for wave in range(WAVES):
        names = [f"guest-{wave}-{number}" for number in range(AT_ONCE)]
        lab.apply({"apiVersion": "v1", "kind": "List", "items": [guest(name) for name in names]})
        running = [f"collectorjob/{name}" for name in names]
        lab.kubectl("wait", *running, "--for=jsonpath={.status.phase}=Running", "--timeout=180s")
        lab.kubectl("delete", *running, "--timeout=60s")
    lab.wait_until("counting", lambda _: objects() == before, f"only {json.dumps(sorted(before))}")
    assert lab.longest_pause_s() < GAP_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert release.kubectl("get", "pods", "--output=name") == installed
