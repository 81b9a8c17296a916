"""On a real API server: evaluation workers come and go with `spec.evaluation`, and the workers stay."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from rollfleet_api.job import KIND
from rollfleet_api.messages import Evaluation, LearnerStatus
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.nats_port import Heartbeats

if TYPE_CHECKING:
    from tests.control.api_server.lab import Lab

pytestmark = pytest.mark.cluster
WaitFor = Callable[[Callable[[], Any]], Any]
EVALUATION: dict[str, Any] = {"every": 10, "workers": 3}


def evaluation_runs(lab: "Lab") -> list[Any]:
    return [run for run in lab.all("Job") if run["metadata"]["labels"][names.ROLE] == Role.EVALUATION]


def test_evaluation_is_an_indexed_job_with_the_rights_of_workers(lab: "Lab") -> None:
    lab.enforce("restricted")
    lab.apply(evaluation=EVALUATION)
    run = lab.run("evaluation")
    assert (run["spec"]["completionMode"], run["spec"]["parallelism"]) == ("Indexed", 3)
    lab.dry_run_pod(run["spec"]["template"])
    assert len(lab.all("Secret")) == len(lab.all("NetworkPolicy")) == 2


def test_edits_of_evaluation_reach_its_workers_alone(lab: "Lab", wait_for: WaitFor) -> None:
    lab.apply()
    workers = lab.run()["metadata"]
    lab.apply(evaluation=EVALUATION)
    first = lab.run("evaluation")["metadata"]["uid"]
    lab.apply(evaluation=EVALUATION | {"episodes": 3})
    wait_for(lambda: [run for run in evaluation_runs(lab) if run["metadata"]["uid"] != first])
    wait_for(lambda: len(evaluation_runs(lab)) == 1)
    lab.apply()
    wait_for(lambda: not evaluation_runs(lab))
    assert lab.run()["metadata"]["uid"] == workers["uid"]


def test_suspension_and_end_of_the_job_stop_evaluation(lab: "Lab", wait_for: WaitFor) -> None:
    lab.apply(evaluation=EVALUATION)
    lab.run("evaluation")
    lab.apply(evaluation=EVALUATION, suspend=True)
    wait_for(lambda: not evaluation_runs(lab))
    lab.apply(evaluation=EVALUATION)
    wait_for(lambda: evaluation_runs(lab))


def test_result_is_in_the_status(lab: "Lab", wait_for: WaitFor) -> None:
    lab.apply(evaluation=EVALUATION)
    lab.wait_condition("Progressing", "Starting")
    found = Evaluation(
        version=20,
        episodes=10,
        mean_return=123.456,
        min_return=1.0,
        max_return=200.0,
        std_return=9.0,
        mean_length=50.0,
        time_s=0.0,
    )
    learner = LearnerStatus(
        session=1,
        version=25,
        applied_version=25,
        frames=64,
        batches=1,
        dropped=0,
        mean_return=None,
        lag=0,
        evaluation=found,
        time_s=time.time(),
    )
    lab.nats.beats[lab.key] = Heartbeats(learner=learner)

    def written() -> Any:
        job: Any = lab.get(KIND, "cartpole")
        return job["status"].get("evaluation")

    assert wait_for(written) == {"version": 20, "meanReturn": 123.5, "episodes": 10}


def test_a_random_policy_is_refused_with_evaluation(lab: "Lab") -> None:
    with pytest.raises(Exception, match="has no weights"):
        lab.apply(policy={"random": {}, "mlp": None}, evaluation=EVALUATION)
