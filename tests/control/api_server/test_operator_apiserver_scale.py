"""On a real API server: a job gets more or fewer workers, and those that stay are left alone."""

import time
from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.control.kubernetes import wait_for

from rollfleet_api.job import KIND
from rollfleet_api.messages import Control, LearnerPhase, LearnerStatus, WorkerState, WorkerStatus
from rollfleet_operator.nats_port import Heartbeats

pytestmark = pytest.mark.cluster


def template(lab: Lab) -> tuple[str, str, Any]:
    """All that a running pod could be replaced for: the run, its revision, and the template."""
    run = lab.run()
    return run["metadata"]["uid"], run["metadata"]["labels"]["rollfleet.dev/revision"], run["spec"]["template"]


def learn(lab: Lab, *, workers: int, waited_s: float, batches: int, later_s: float = 0.0) -> None:
    """These workers collect, and the learner has waited so long for so many batches."""
    now_s = time.time() + later_s
    beats = {
        index: WorkerStatus(
            worker=index,
            incarnation=0,
            state=WorkerState.COLLECTING,
            frames_per_second=100.0,
            time_s=time.time(),
        )
        for index in range(workers)
    }
    learner = LearnerStatus(
        session=1, version=1, applied_version=1, frames=64 * batches, batches=batches, waited_s=waited_s, time_s=now_s
    )
    control = Control(session=1, phase=LearnerPhase.RUN, round=0, version=1)
    lab.nats.beats[lab.key] = Heartbeats(workers=beats, learner=learner, control=control)


@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_kubectl_scale_leaves_running_workers_alone(lab: Lab, mode: str) -> None:
    lab.apply(workers=2, mode=mode)
    before = template(lab)

    def scale(workers: int) -> None:
        lab.patch(KIND, "cartpole", {"spec": {"replicas": workers}}, "scale")
        wait_for(lambda: lab.run()["spec"]["parallelism"] == workers)
        wait_for(lambda: lab.nats.published[lab.key].spec.workers == workers)
        assert template(lab) == before

    scale(4)
    scale(1)


def test_autoscale_sets_the_number_that_kubectl_shows_and_replaces_no_worker(lab: Lab) -> None:
    lab.apply(workers=2, autoscale={"maxWorkers": 8})
    before = template(lab)
    learn(lab, workers=2, waited_s=0.0, batches=0)
    lab.seconds_pass(1.0)  # it is looked at each 0.2 s
    learn(lab, workers=2, waited_s=50.0, batches=100, later_s=61.0)
    wait_for(lambda: lab.run()["spec"]["parallelism"] == 4)
    scale: Any = lab.read(KIND, "cartpole", "scale")
    assert scale["spec"]["replicas"] == 4
    assert template(lab) == before
