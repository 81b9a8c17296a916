"""A learner or a recorder that is no pod of its job, and waits while the job ends: a real operator and its NATS."""

import time
from pathlib import Path

import pytest
from tests.api.job_data import job_data
from tests.sdk.cluster.namespace import Namespace
from tests.waiting import wait_until

import rollfleet
from rollfleet import Jobs
from rollfleet.cluster.api import ClusterApi
from rollfleet.errors import JobEnded
from rollfleet_api.kubernetes_names import selector
from rollfleet_api.permissions import Role
from rollfleet_api.times import format_time


def give_up_workers(api: ClusterApi, namespace: Namespace) -> None:
    """The Job controller gives the workers' run up."""
    now, labels = format_time(time.time()), selector("cartpole", Role.WORKER)
    (run,) = wait_until(lambda: api.list("Job", namespace.name, labels=labels).items)
    conditions = [
        {"type": each, "status": "True", "reason": "MaxFailedIndexesExceeded", "message": "worker 0 ran out of memory"}
        for each in ("FailureTarget", "Failed")
    ]
    timed = [each | {"lastTransitionTime": now} for each in conditions]
    run = {"apiVersion": "batch/v1", "kind": "Job", "metadata": run["metadata"]}
    namespace.status(run, {"startTime": now, "conditions": timed})


@pytest.mark.usefixtures("operator", "outside")
def test_both_end_with_a_job_that_fails(api: ClusterApi, namespace: Namespace, tmp_path: Path) -> None:
    Jobs(namespace=namespace.name).submit(job_data(policy={"random": {}}, weights={"interval": 0}))
    key = f"{namespace.name}/cartpole"
    with rollfleet.record(key, tmp_path / "recording", timeout_s=60) as recorder:
        collector = rollfleet.connect(key, timeout_s=60)
        give_up_workers(api, namespace)
        with pytest.raises(JobEnded, match=rf"the job {key} has failed: .*out of memory \(WorkerFailed\)"):
            next(collector)
        assert recorder.wait(60)
        collector.detach()
    with rollfleet.connect(key, timeout_s=60) as late, pytest.raises(JobEnded, match="has failed"):
        next(late)
