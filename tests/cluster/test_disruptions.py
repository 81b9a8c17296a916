"""Whatever is deleted in mid-run, the job goes on."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cluster.conftest import Lab, Release

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

ALL_ITS_FRAMES = 2_000_000  # more than any of these tests sees


def test_a_job_outlives_a_worker_the_operator_and_nats(
    lab: "Lab", release: "Release", cartpole: dict[str, Any]
) -> None:
    cartpole["spec"]["collect"]["totalFrames"] = ALL_ITS_FRAMES
    lab.apply(cartpole)
    frames = lab.wait_for_frames("cartpole", more_than=0)["frames"]

    gone = lab.pods("worker")[0]["metadata"]["name"]
    lab.kubectl("delete", "pod", gone)
    frames = lab.wait_for_frames("cartpole", more_than=frames + 2048)["frames"]
    workers = {pod["metadata"]["name"] for pod in lab.pods("worker")}
    assert gone not in workers
    assert len(workers) == 2

    release.kubectl("delete", "pod", "--selector=app.kubernetes.io/component=operator")
    release.kubectl("rollout", "status", "deployment/rollfleet", "--timeout=120s")
    frames = lab.wait_for_frames("cartpole", more_than=frames)["frames"]
    release.kubectl("delete", "pod", "rollfleet-nats-0")
    release.kubectl("rollout", "status", "statefulset/rollfleet-nats", "--timeout=120s")
    lab.wait_for_frames("cartpole", more_than=frames + 2048)
    assert {pod["metadata"]["name"] for pod in lab.pods("worker")} == workers, "neither was noticed by a worker"
