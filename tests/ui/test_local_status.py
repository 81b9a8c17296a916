"""The state of a run on this machine, in the operator's words."""

import pytest

from rollfleet.testing import small_job
from rollfleet_api.diagnosis import Diagnosis
from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.status import CollectorJobStatus, ConditionType
from rollfleet_ui.local_status import ADVICE, STOPPED, diagnosis, final_status, job_view, running_status

JOB = small_job(workers=2)


def running(
    *states: WorkerState, problem: tuple[str, str] | None = None, frames_per_second: float = 0.0
) -> CollectorJobStatus:
    beats = {index: WorkerStatus(worker=index, incarnation=0, state=state) for index, state in enumerate(states)}
    return running_status(JOB, None, beats, problem, frames_per_second)


def diagnosed(status: CollectorJobStatus) -> Diagnosis:
    return diagnosis(job_view(JOB, 1_700_000_000.0, status))


@pytest.mark.parametrize(
    ("status", "state", "reason", "ready"),
    [
        (running(), "Pending", "Starting", 0),
        (running(WorkerState.STARTING), "Running", "Starting", 0),
        (running(WorkerState.COLLECTING, WorkerState.WAITING_FOR_LEARNER), "Running", "Collecting", 2),
        (running(WorkerState.WAITING_FOR_WEIGHTS), "Running", "WaitingForWeights", 1),
        (running(problem=("WorkerCrashed", "worker 1 ended")), "Pending", "WorkerCrashed", 0),
        (final_status(ConditionType.COMPLETE, "LearnerDone", "done", 1.7e9), "Complete", "LearnerDone", 0),
        (final_status(ConditionType.SUSPENDED, STOPPED, "no", 1.7e9), STOPPED, STOPPED, 0),
        (final_status(ConditionType.FAILED, "LearnerFailed", "no", 1.7e9), "Failed", "LearnerFailed", 0),
    ],
)
def test_heartbeats_show_the_state_of_a_run(status: CollectorJobStatus, state: str, reason: str, ready: int) -> None:
    found = diagnosed(status)
    assert (found.state, found.reason, status.workers.ready) == (state, reason, ready)
    assert found.advice == ADVICE.get(reason, "")
    assert found.is_problem == (reason in ("WorkerCrashed", "LearnerFailed"))


def test_a_run_whose_frames_flow_needs_no_advice() -> None:
    assert diagnosed(running(WorkerState.WAITING_FOR_LEARNER)).advice
    assert not diagnosed(running(WorkerState.WAITING_FOR_LEARNER, frames_per_second=10.0)).advice


def test_advice_names_no_command_that_needs_a_cluster() -> None:
    assert not [advice for advice in ADVICE.values() if "rollfleet logs" in advice or "kubectl" in advice]


def test_a_run_whose_workers_all_start_again_still_runs() -> None:
    learner = LearnerStatus(session=1, version=1, applied_version=1, frames=64, batches=1)
    found = diagnosed(running_status(JOB, learner, {}))
    assert (found.state, found.reason) == ("Running", "Starting")
