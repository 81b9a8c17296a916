"""The conditions of a job, for `kubectl wait`, for tools that watch its health (kstatus, Argo CD), and for people."""

from collections.abc import Iterator

from rollfleet_api.messages import WorkerState
from rollfleet_api.permissions import Role
from rollfleet_api.state.problems import EARLIER_JOB, Problem, clip, problems
from rollfleet_api.state.snapshot import Snapshot
from rollfleet_api.state.verdict import Stage, is_completed
from rollfleet_api.status import Condition, ConditionStatus, ConditionType

_STOPPED = {Stage.COMPLETE: "Complete", Stage.FAILED: "Failed", Stage.RETRY: "TryingAgain", Stage.LIVE: "Suspended"}
"""The reason why no worker should run, by stage."""

_READY = {
    Role.WORKER: ("AllWorkersReady", "WorkersMissing", "workers run and report"),
    Role.ENV_SERVER: ("AllServersReady", "ServersMissing", "environment servers accept connections"),
}
"""By the role that a job is about: the reasons why it is ready, or is not, and what is counted."""

_QUEUED = "Kueue has not admitted the {} yet, or another client has suspended their Kubernetes Job"


def conditions(snapshot: Snapshot) -> list[Condition]:
    """Return all that the job has, without their times."""
    return [
        *_ready(snapshot),
        _progressing(snapshot),
        _degraded(snapshot),
        _end(snapshot, ConditionType.COMPLETE, Stage.COMPLETE),
        _end(snapshot, ConditionType.FAILED, Stage.FAILED, Stage.RETRY),  # until the failed run is deleted
        _suspended(snapshot),
        _end(snapshot, ConditionType.STALLED, Stage.FAILED),  # kstatus: no time will change it
    ]


def _ready(snapshot: Snapshot) -> Iterator[Condition]:
    """Yield whether all processes run, unless none should: kstatus would wait for a condition that is False."""
    stage = snapshot.verdict.stage
    if not snapshot.stopped:
        whole, missing, counted = _READY[snapshot.role]
        reason = whole if (holds := snapshot.ready >= snapshot.wanted) else missing
        yield condition(ConditionType.READY, holds, reason, f"{snapshot.ready} of {snapshot.wanted} {counted}")
    elif stage in (Stage.FAILED, Stage.RETRY) or (stage is Stage.LIVE and snapshot.problem):
        yield condition(ConditionType.READY, False, _STOPPED[stage], "no workers should run")


def _progressing(snapshot: Snapshot) -> Condition:
    def progressing(reason: str, message: str, *, holds: bool = True) -> Condition:
        return condition(ConditionType.PROGRESSING, holds, reason, message)

    if snapshot.stopped:
        return progressing(_STOPPED[snapshot.verdict.stage], "no workers should run", holds=False)
    if queued := _queued(snapshot):
        return progressing("Queued", queued, holds=False)
    if snapshot.observed.server_starts:
        return progressing("NatsStarting", "the job's NATS server is starting")
    if snapshot.problem and snapshot.problem.reason == EARLIER_JOB:
        return progressing(snapshot.problem.reason, snapshot.problem.message)
    if any(other.role is snapshot.role and other != snapshot.run for other in snapshot.observed.runs):
        return progressing("Rolling", "workers with an earlier spec are leaving")
    if snapshot.role is Role.ENV_SERVER and snapshot.ready >= snapshot.wanted:
        return progressing("Serving", "environment servers are ready for the program that steps them")
    # Workers whose frames the learner takes wait now and then: each wait would be a change.
    if WorkerState.COLLECTING in snapshot.states or (snapshot.states and snapshot.frames_per_second):
        return progressing("Collecting", "workers are collecting")
    if WorkerState.WAITING_FOR_WEIGHTS in snapshot.states:
        return progressing("WaitingForWeights", "workers wait for the learner's first weights, or for newer ones")
    if WorkerState.WAITING_FOR_LEARNER in snapshot.states:
        return progressing("WaitingForLearner", "workers wait for the learner")
    return progressing("Starting", f"{'workers' if snapshot.role is Role.WORKER else 'servers'} are starting")


def _degraded(snapshot: Snapshot) -> Condition:
    problem = snapshot.problem
    if problem is None and not snapshot.stopped:
        problem = next(problems(snapshot.observed), None) or _workers_left(snapshot)
    if problem is None or problem.reason == EARLIER_JOB:
        return condition(ConditionType.DEGRADED, False, "AsExpected", "")
    return condition(ConditionType.DEGRADED, True, problem.reason, problem.message)


def _workers_left(snapshot: Snapshot) -> Problem | None:
    run = snapshot.observed.current.get(Role.WORKER)
    if run is None or not run.complete or is_completed(snapshot.job, snapshot.observed, snapshot.heartbeats):
        return None
    return Problem(
        "WorkersLeft", "all workers exited with code 0, and none was heard: no learner has completed the job"
    )


def _end(snapshot: Snapshot, kind: ConditionType, *stages: Stage) -> Condition:
    verdict = snapshot.verdict
    if verdict.stage in stages:
        return condition(kind, True, verdict.reason, verdict.message)
    return condition(kind, False, "NotEnded" if not verdict.stage.ended else "EndedOtherwise", "")


def _suspended(snapshot: Snapshot) -> Condition:
    if snapshot.job.spec.suspend and not snapshot.verdict.stage.ended:
        verdict = snapshot.verdict  # a run on one machine has another reason
        message = verdict.message or "`spec.suspend` is true"
        return condition(ConditionType.SUSPENDED, True, verdict.reason or "Suspended", message)
    if queued := _queued(snapshot):
        return condition(ConditionType.SUSPENDED, True, "Queued", queued)
    return condition(ConditionType.SUSPENDED, False, "NotSuspended", "")


def _queued(snapshot: Snapshot) -> str:
    """Return which pods of a live job wait, in words; empty: none. Its workers cannot collect without their servers."""
    if snapshot.verdict.stage is Stage.LIVE:
        for role, name in ((Role.WORKER, "workers"), (Role.ENV_SERVER, "environment servers")):
            if (run := snapshot.observed.current.get(role)) and run.suspended:
                return _QUEUED.format(name)
    return ""


def condition(kind: ConditionType, holds: bool, reason: str, message: str) -> Condition:
    """Return a condition, with its message clipped."""
    return Condition(
        type=kind,
        status=ConditionStatus.TRUE if holds else ConditionStatus.FALSE,
        reason=reason,
        message=clip(message),
    )
