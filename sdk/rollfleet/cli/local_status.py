"""The status of a run on this machine, in the same words as the operator's, so that one diagnosis serves both."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rollfleet_api.diagnosis import Diagnosis, diagnose
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.reported import reported
from rollfleet_api.status import (
    CollectorJobStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    Phase,
    WorkersStatus,
)
from rollfleet_api.views import CollectView, JobSpecView, JobView, MetadataView

STOPPED: Final = "Stopped"
_PHASES: Final = {
    ConditionType.COMPLETE: Phase.COMPLETE,
    ConditionType.FAILED: Phase.FAILED,
    ConditionType.SUSPENDED: Phase.SUSPENDED,
}
_ABSENT: Final = (WorkerState.STARTING, WorkerState.FAILED, WorkerState.LEFT)
ADVICE: Final = {
    "EvaluationCrashed": "See its last lines in the timeline. The training goes on.",
    "LearnerFailed": "See the learner's log under Workers, fix it, and start the run again.",
    "NatsUnavailable": "Wait: nats-server restarts by itself, and the workers continue.",
    "TooManyRestarts": "See the worker's log under Workers, fix it, and start the run again.",
    "WaitingForLearner": "If this lasts, see the learner's log under Workers.",
    "WaitingForWeights": "Let the learner send weights: `collector.update_policy_weights_()`, or `weights.interval`.",
    "WorkerCrashed": "See the worker's log under Workers. The worker restarts by itself.",
    "WorkerFailed": "See the worker's log under Workers, fix it, and start the run again.",
    "WorkerStuck": "See the worker's log under Workers.",
}
"""Advice by reason. That of a cluster names commands that do not see this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of a run at one moment.

    Attributes:
        learner: The learner's newest heartbeat. None: none has come.
        workers: The newest heartbeats of workers that run, by index.
        problem: The reason of a problem and a sentence; None: no problem.
        restarts: Restarts of all workers.
        last_error: The newest error of a worker.
        started_s: When the run began.
        ended: The condition that ended it. None: it goes on.
        ended_s: When it ended.
    """

    learner: LearnerStatus | None
    workers: Mapping[int, WorkerStatus]
    problem: tuple[str, str] | None
    frames_per_second: float
    restarts: int
    last_error: str
    started_s: float
    ended: Condition | None
    ended_s: float | None


def ready(workers: Mapping[int, WorkerStatus]) -> int:
    """Return the number of workers that report that they run."""
    return sum(beat.state not in _ABSENT for beat in workers.values())


def job_view(job: CollectorJob, seen: Seen) -> JobView:
    """Return a run as the operator would show it."""
    return JobView(
        metadata=MetadataView(
            name=job.metadata.name,
            namespace=job.metadata.namespace,
            creation_timestamp=datetime.fromtimestamp(seen.started_s, UTC),
        ),
        spec=JobSpecView(
            workers=job.spec.workers,
            mode=job.spec.mode,
            collect=CollectView(total_frames=job.spec.collect.total_frames or 0),
        ),
        status=_status(job, seen),
    )


def diagnosis(view: JobView) -> Diagnosis:
    """Diagnose a run, with advice for this machine."""
    found = diagnose(view)
    state = STOPPED if found.reason == STOPPED else found.state
    needed = found.is_problem or not view.status.frames_per_second
    return found.model_copy(update={"state": state, "advice": ADVICE.get(found.reason, "") if needed else ""})


def condition(kind: ConditionType, reason: str, message: str) -> Condition:
    """Return a condition that holds."""
    return Condition(type=kind, status=ConditionStatus.TRUE, reason=reason, message=message)


def _status(job: CollectorJob, seen: Seen) -> CollectorJobStatus:
    ended, has_begun = seen.ended, seen.workers or (seen.learner and seen.learner.frames)
    status = CollectorJobStatus(
        phase=_PHASES[ConditionType(ended.type)] if ended else Phase.RUNNING if has_begun else Phase.PENDING,
        conditions=[ended] if ended else _conditions(job, seen),
        workers=WorkersStatus(desired=0 if ended else job.spec.workers, ready=0 if ended else ready(seen.workers)),
        frames_per_second=0.0 if ended else round(seen.frames_per_second, 1),
        restarts=seen.restarts,
        start_time=_text(seen.started_s),
        completion_time=_text(seen.ended_s) if seen.ended_s else None,
        last_error=seen.last_error or None,
    )
    return status.model_copy(update=reported(seen.learner, seen.workers.values()))


def _conditions(job: CollectorJob, seen: Seen) -> list[Condition]:
    found = []
    if ready(seen.workers) >= job.spec.workers:
        found.append(condition(ConditionType.READY, "AllWorkersReady", "all workers run and report"))
    if seen.problem:
        found.append(condition(ConditionType.DEGRADED, *seen.problem))
    return [*found, condition(ConditionType.PROGRESSING, *_progress({beat.state for beat in seen.workers.values()}))]


def _progress(states: set[WorkerState]) -> tuple[str, str]:
    if WorkerState.COLLECTING in states:
        return "Collecting", "workers are collecting"
    if WorkerState.WAITING_FOR_WEIGHTS in states:
        return "WaitingForWeights", "workers wait for the learner's first weights, or for newer ones"
    if WorkerState.WAITING_FOR_LEARNER in states:
        return "WaitingForLearner", "workers wait for the learner"
    return "Starting", "workers are starting"


def _text(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
