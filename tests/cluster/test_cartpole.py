"""A job from `kubectl apply` to its end, on a whole cluster."""

import re
from typing import Any

import pytest
from tests.cluster.lab import Lab, Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_installation_answers(release: Release) -> None:
    assert "Phase:          Succeeded" in release.helm("test")


def test_cartpole_is_solved_and_its_job_completes(lab: Lab, cartpole: dict[str, Any]) -> None:
    lab.apply(cartpole)
    lab.kubectl("wait", "collectorjob/cartpole", "--for=condition=Ready", "--timeout=300s")
    seen = lab.wait_for_frames("cartpole", more_than=0)
    assert seen["workers"] == {"desired": 2, "ready": 2}
    lab.kubectl("wait", "collectorjob/cartpole", "--for=condition=Complete", "--timeout=1500s")
    trained = re.search(r"trained: /tmp/out/checkpoint-\S+, mean return (\S+)", lab.logs("learner"))
    assert trained
    assert float(trained[1]) >= 475
    last = lab.status("cartpole")
    assert last["phase"] == "Complete"
    assert last["frames"] > seen["frames"]
    assert last["publishedVersion"] > seen.get("publishedVersion", 0)
    # The job ends with its learner's container; workers leave by themselves, and their pods end a moment later.
    leaving = ("pods", "--selector=rollfleet.dev/role=worker", "--for=jsonpath={.status.phase}=Succeeded")
    lab.kubectl("wait", *leaving, "--timeout=60s")
    assert len(lab.pods("worker")) == 2
