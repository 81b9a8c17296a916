"""Pods request GPUs, and a pod without one reports why. The node has four (perhaps only as a number)."""

import json
from typing import Any

import pytest
from tests.api.job_data import job_data
from tests.cluster.lab import Lab, run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

RESOURCE = "nvidia.com/gpu"
ASKED_S = 30  # within which a user is to know that a pod will find no node


def gpu_job(*, workers: int, count: int) -> dict[str, Any]:
    """A job whose workers act at random and wait for a learner."""
    resources = {"gpu": {"count": count}}
    return job_data({"name": "gpus"}, workers=workers, policy={"random": {}}, resources=resources)


@pytest.fixture
def four_gpus(lab: Lab) -> None:
    """A cluster whose nodes have four GPUs together."""
    nodes = json.loads(run("kubectl", "get", "nodes", "--output=json"))["items"]
    found = sum(int(node["status"]["allocatable"].get(RESOURCE, 0)) for node in nodes)
    if found != 4:
        pytest.skip(f"needs a cluster with four {RESOURCE}; this one has {found}: advertise them on a node's status")


@pytest.mark.usefixtures("four_gpus")
def test_four_workers_take_four_gpus_and_a_fifth_reports_that_none_is_left(lab: Lab) -> None:
    lab.apply(gpu_job(workers=4, count=1))
    lab.wait_for_workers("gpus", 4)
    assert lab.status("gpus")["gpus"] == 4
    placed = lab.uids("worker")
    for pod in lab.pods("worker"):
        assert pod["spec"]["containers"][0]["resources"]["limits"][RESOURCE] == "1"

    lab.kubectl("scale", "collectorjob/gpus", "--replicas=5")
    lab.kubectl("wait", "collectorjob/gpus", "--for=condition=Degraded", f"--timeout={ASKED_S}s")
    (fifth,) = [pod for pod in lab.pods("worker") if pod["metadata"]["uid"] not in placed]
    assert fifth["status"]["phase"] == "Pending"
    condition = lab.condition("gpus", "Degraded")
    assert condition["reason"] == "InsufficientDevices"
    assert condition["message"].startswith(f"worker 4 waits for a node with 1 {RESOURCE}")
    assert lab.status("gpus")["workers"] == {"desired": 5, "ready": 4}
    assert lab.status("gpus")["gpus"] == 4

    lab.kubectl("scale", "collectorjob/gpus", "--replicas=4")
    lab.kubectl("wait", "collectorjob/gpus", "--for=condition=Degraded=false", f"--timeout={ASKED_S}s")
    assert lab.uids("worker") == placed, "those with a GPU kept it"
