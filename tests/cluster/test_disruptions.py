"""Whatever is deleted in mid-run, the job goes on."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.lab import Lab, Release, run

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
    lab.kubectl("delete", "pod", "--selector=rollfleet.dev/role=nats")
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


def test_a_job_with_a_sidecar_beside_each_container_restarts_a_worker_and_completes(
    lab: Lab, counting: dict[str, Any]
) -> None:
    beside: dict[str, Any] = {"name": "a-sidecar", "image": lab.release.worker_image}
    beside["command"] = ["sh", "-c", "echo beside; trap 'exit 1' TERM; while true; do sleep 1; done"]
    beside["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    counting["spec"]["template"] = {"spec": {"containers": [{"name": "worker"}, beside]}}
    counting["spec"]["learner"]["template"]["spec"]["containers"].append(beside)
    lab.apply(counting)
    frames = lab.wait_for_frames("counting", more_than=0)["frames"]
    before = lab.pods("worker")[0]["metadata"]
    stop = "import os; os.kill(1, 15)"
    lab.kubectl("exec", before["name"], "--", "python", "-c", stop)
    lab.wait_until("counting", lambda _: before["uid"] not in running(lab) and len(running(lab)) == 2, "another worker")
    lab.patch("counting", collect={"totalFrames": frames + 20_000})
    lab.kubectl("wait", "collectorjob/counting", "--for=condition=Complete", "--timeout=120s")
    assert lab.condition("counting", "Complete")["reason"] == "TotalFrames"
    lab.wait_until("counting", lambda _: not running(lab), "no pod runs")
    assert "done" in lab.logs("learner")
    plugin = str(Path(sys.executable).with_name("rollfleet"))
    told = run(plugin, "logs", "counting", f"--namespace={lab.namespace}", "--learner", "--container=a-sidecar")
    assert told == "[learner] beside\n"


def running(lab: Lab) -> set[str]:
    """The UIDs of the workers' pods that have not ended."""
    return {pod["metadata"]["uid"] for pod in lab.pods("worker") if pod["status"]["phase"] in ("Pending", "Running")}


def names(lab: Lab) -> set[str]:
    return {pod["metadata"]["name"] for pod in lab.pods("worker")}


def started_from(log: str) -> tuple[int, int]:
    """The version and the frames at which a learner says that it was connected."""
    found = re.search(r"connected at version (\d+) and (\d+) frames", log)
    assert found, log
    return int(found[1]), int(found[2])
