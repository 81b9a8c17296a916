"""The status of a run on this machine, in the same words as the operator's, so that one diagnosis serves both."""

from collections.abc import Mapping
from typing import Final

from rollfleet_api.diagnosis import Diagnosis, diagnose
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.reported import progress
from rollfleet_api.status import (
    CollectorJobStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    Phase,
    WorkersStatus,
)
from rollfleet_api.times import format_time
from rollfleet_api.views import JobView
from rollfleet_ui.history import JobHistory
from rollfleet_ui.model import JobPage
from rollfleet_ui.rows import SKETCH_POINTS, job_row
from rollfleet_ui.spec_text import defaulted, spec_text

STOPPED: Final = "Stopped"
_ABSENT: Final = (WorkerState.STARTING, WorkerState.FAILED, WorkerState.LEFT)
ADVICE: Final = {
    "EvaluationCrashed": "See its last lines in the timeline. The training goes on.",
    "LearnerCrashed": "See the learner's log under Workers. The learner restarts by itself.",
    "LearnerFailed": "See the learner's log under Workers, fix it, and start the run again.",
    "NatsUnavailable": "Wait: nats-server restarts by itself, and the workers continue.",
    "NonFinite": "See the first one in the output of the run: `collect.nonFinite: Error` ends it there.",
    "TooManyRestarts": "See the worker's log under Workers, fix it, and start the run again.",
    "WaitingForLearner": "If this lasts, see the learner's log under Workers.",
    "WaitingForWeights": "Let the learner send weights: `collector.update_policy_weights_()`, or `weights.interval`.",
    "WorkerCrashed": "See the worker's log under Workers. The worker restarts by itself.",
    "WorkerFailed": "See the worker's log under Workers, fix it, and start the run again.",
    "WorkerStuck": "See the worker's log under Workers.",
}
"""Advice by reason. That of a cluster names commands that do not see this run."""


def ready(workers: Mapping[int, WorkerStatus]) -> int:
    """Return the number of workers that report that they run."""
    return sum(beat.state not in _ABSENT for beat in workers.values())


def running_status(
    job: CollectorJob,
    learner: LearnerStatus | None,
    workers: Mapping[int, WorkerStatus],
    problem: tuple[str, str] | None = None,
    frames_per_second: float = 0.0,
) -> CollectorJobStatus:
    """Return the status of a run that goes on.

    `learner` is its newest heartbeat; None: none has come. `workers` are those of workers that run, by index. A
    `problem` is a reason and a sentence.
    """
    conditions = []
    if ready(workers) >= job.spec.workers:
        conditions.append(_condition(ConditionType.READY, "AllWorkersReady", "all workers run and report"))
    if problem:
        conditions.append(_condition(ConditionType.DEGRADED, *problem))
    states = {beat.state for beat in workers.values()}
    return CollectorJobStatus(
        phase=Phase.RUNNING if workers or (learner and learner.frames) else Phase.PENDING,
        conditions=[*conditions, _condition(ConditionType.PROGRESSING, *progress(states, frames_per_second))],
        workers=WorkersStatus(desired=job.spec.workers, ready=ready(workers)),
        frames_per_second=round(frames_per_second, 1),
    )


def final_status(kind: ConditionType, reason: str, message: str, time_s: float) -> CollectorJobStatus:
    """Return the status of a run that a condition ended: Complete, Failed or Suspended."""
    return CollectorJobStatus(
        phase=Phase(kind), conditions=[_condition(kind, reason, message)], completion_time=format_time(time_s)
    )


def job_view(job: CollectorJob, started_s: float, status: CollectorJobStatus) -> JobView:
    """Return a run as the operator would show it."""
    seen, started = job.model_dump(mode="json", by_alias=True, exclude_none=True), format_time(started_s)
    return JobView.model_validate(
        {
            "metadata": seen["metadata"] | {"creationTimestamp": started},
            "spec": seen["spec"],
            "status": status.model_copy(update={"start_time": started}),
        }
    )


def diagnosis(view: JobView) -> Diagnosis:
    """Diagnose a run, with advice for this machine."""
    found = diagnose(view)
    state = STOPPED if found.reason == STOPPED else found.state
    needed = found.is_problem or not view.status.frames_per_second
    return found.model_copy(update={"state": state, "advice": ADVICE.get(found.reason, "") if needed else ""})


def page_of(job: CollectorJob, started_s: float, status: CollectorJobStatus, history: JobHistory) -> JobPage:
    """Return what the page shows of a run, without its processes."""
    view, text = job_view(job, started_s, status), spec_text(job.spec)
    row = job_row(view, diagnosis(view), history.series.sketch("meanReturn", SKETCH_POINTS))
    found, waits = defaulted(job.spec), history.bottleneck()
    return JobPage(row=row, bottleneck=waits, status=view.status, spec=text, defaulted=found)


def _condition(kind: ConditionType, reason: str, message: str) -> Condition:
    return Condition(type=kind, status=ConditionStatus.TRUE, reason=reason, message=message)
