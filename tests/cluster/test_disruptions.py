"""Whatever is deleted in mid-run, the job goes on."""

import re
from typing import Any

import pytest
from tests.cluster.lab import Lab, Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_a_job_outlives_a_worker_the_operator_and_nats(lab: Lab, release: Release, counting: dict[str, Any]) -> None:
    desired = counting["spec"]["workers"]
    lab.apply(counting)
    frames = lab.wait_for_frames("counting", more_than=0)["frames"]

    gone = lab.pods("worker")[0]["metadata"]["name"]
    lab.kubectl("delete", "pod", gone)
    lab.wait_until("counting", lambda _: gone not in (now := names(lab)) and len(now) == desired, "another worker")
    frames = lab.wait_for_frames("counting", more_than=frames + 2048)["frames"]
    workers = names(lab)

    release.kubectl("delete", "pod", "--selector=app.kubernetes.io/component=operator")
    release.kubectl("rollout", "status", "deployment/rollfleet", "--timeout=120s")
    frames = lab.wait_for_frames("counting", more_than=frames)["frames"]
    release.kubectl("delete", "pod", "rollfleet-nats-0")
    release.kubectl("rollout", "status", "statefulset/rollfleet-nats", "--timeout=120s")
    lab.wait_for_frames("counting", more_than=frames + 2048)
    assert names(lab) == workers, "neither was noticed by a worker"


def test_a_job_whose_learner_is_deleted_in_mid_run_completes(lab: Lab, counting: dict[str, Any]) -> None:
    total = counting["spec"]["collect"]["totalFrames"] = 200 * counting["spec"]["collect"]["framesPerBatch"]
    lab.apply(counting)
    before = lab.wait_for_frames("counting", more_than=10_000)
    (gone,) = lab.pods("learner")
    workers = lab.uids("worker")
    lab.kubectl("delete", "pod", gone["metadata"]["name"])

    lab.kubectl("wait", "collectorjob/counting", "--for=condition=Complete", "--timeout=300s")
    (successor,) = lab.pods("learner")
    assert successor["metadata"]["uid"] != gone["metadata"]["uid"]
    assert lab.uids("worker") == workers, "no worker was restarted"
    version, frames = started_from(lab.logs("learner"))
    assert version >= before["publishedVersion"]
    assert before["frames"] <= frames < total, "it went on from where the deleted one had been"
    assert lab.status("counting")["frames"] == total


def names(lab: Lab) -> set[str]:
    return {pod["metadata"]["name"] for pod in lab.pods("worker")}


def started_from(log: str) -> tuple[int, int]:
    """The version and the frames at which a learner says that it was connected."""
    found = re.search(r"connected at version (\d+) and (\d+) frames", log)
    assert found, log
    return int(found[1]), int(found[2])
