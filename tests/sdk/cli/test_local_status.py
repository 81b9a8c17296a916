"""The state of a run on this machine, in the operator's words."""

from dataclasses import replace

import pytest

from rollfleet.cli.local_status import ADVICE, STOPPED, Seen, condition, diagnosis, job_view
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.status import ConditionType

JOB = CollectorJob.model_validate(
    {
        "metadata": {"name": "test"},
        "spec": {
            "workers": 2,
            "env": {"id": "CartPole-v1"},
            "policy": {"random": {}},
            "collect": {"framesPerBatch": 64},
        },
    }
)
NOTHING = Seen(
    learner=None,
    workers={},
    problem=None,
    frames_per_second=0.0,
    restarts=0,
    last_error="",
    started_s=1_700_000_000.0,
    ended=None,
    ended_s=None,
)


def beats(*states: WorkerState) -> dict[int, WorkerStatus]:
    return {index: WorkerStatus(worker=index, incarnation=0, state=state) for index, state in enumerate(states)}


@pytest.mark.parametrize(
    ("seen", "state", "reason", "ready"),
    [
        (NOTHING, "Pending", "Starting", 0),
        (replace(NOTHING, workers=beats(WorkerState.STARTING)), "Running", "Starting", 0),
        (
            replace(NOTHING, workers=beats(WorkerState.COLLECTING, WorkerState.WAITING_FOR_LEARNER)),
            "Running",
            "Collecting",
            2,
        ),
        (replace(NOTHING, workers=beats(WorkerState.WAITING_FOR_WEIGHTS)), "Running", "WaitingForWeights", 1),
        (replace(NOTHING, problem=("WorkerCrashed", "worker 1 ended")), "Pending", "WorkerCrashed", 0),
        (
            replace(NOTHING, ended=condition(ConditionType.COMPLETE, "LearnerDone", "done"), ended_s=1.7e9),
            "Complete",
            "LearnerDone",
            0,
        ),
        (replace(NOTHING, ended=condition(ConditionType.SUSPENDED, STOPPED, "no"), ended_s=1.7e9), STOPPED, STOPPED, 0),
        (
            replace(NOTHING, ended=condition(ConditionType.FAILED, "LearnerFailed", "no"), ended_s=1.7e9),
            "Failed",
            "LearnerFailed",
            0,
        ),
    ],
)
def test_a_run_is_in_the_state_that_its_heartbeats_show(seen: Seen, state: str, reason: str, ready: int) -> None:
    view = job_view(JOB, seen)
    found = diagnosis(view)
    assert (found.state, found.reason, view.status.workers.ready) == (state, reason, ready)
    assert found.advice == ADVICE.get(reason, "")
    assert found.is_problem == (reason in ("WorkerCrashed", "LearnerFailed"))


def test_a_run_whose_frames_flow_needs_no_advice() -> None:
    waiting = replace(NOTHING, workers=beats(WorkerState.WAITING_FOR_LEARNER))
    assert diagnosis(job_view(JOB, waiting)).advice
    assert not diagnosis(job_view(JOB, replace(waiting, frames_per_second=10.0))).advice


def test_advice_names_no_command_that_needs_a_cluster() -> None:
    assert not [advice for advice in ADVICE.values() if "rollfleet logs" in advice or "kubectl" in advice]


def test_a_run_whose_workers_all_start_again_still_runs() -> None:
    learner = LearnerStatus(session=1, version=1, applied_version=1, frames=64, batches=1)
    found = diagnosis(job_view(JOB, replace(NOTHING, learner=learner)))
    assert (found.state, found.reason) == ("Running", "Starting")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_return_that_json_cannot_hold_is_unknown(value: float) -> None:
    learner = LearnerStatus(session=1, version=3, applied_version=1, frames=640, batches=10, mean_return=value)
    view = job_view(JOB, replace(NOTHING, learner=learner))
    assert view.status.mean_return is None
    assert view.lag == 2
    assert '"frames":640' in view.status.model_dump_json()
