"""The six conditions of a job, for `kubectl wait` and for whoever asks what is going on."""

from dataclasses import dataclass

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import WorkerState
from rollfleet_api.permissions import Role
from rollfleet_api.status import Condition, ConditionStatus, ConditionType
from rollfleet_operator.observed import Observed
from rollfleet_operator.problems import Problem, problems
from rollfleet_operator.verdict import Stage, Verdict, current_run
from rollfleet_operator.workloads import queued


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the conditions are told from.

    Attributes:
        job: The job.
        verdict: What is to become of it.
        wanted: Workers that there should be now.
        ready: Workers that run and report.
        running: A worker runs.
        observed: The job's children.
        states: What the ready workers do.
        problem: What went wrong when the children were made; None: nothing.
    """

    job: CollectorJob
    verdict: Verdict
    wanted: int
    ready: int
    running: bool
    observed: Observed
    states: frozenset[WorkerState]
    problem: Problem | None


def conditions(finding: Finding) -> list[Condition]:
    """All six, without their times."""
    return [
        _ready(finding),
        _progressing(finding),
        _degraded(finding),
        _end(finding, ConditionType.COMPLETE, Stage.COMPLETE),
        _failed(finding),
        _suspended(finding),
    ]


def _ready(finding: Finding) -> Condition:
    counted = f"{finding.ready} of {finding.wanted} workers run and report"
    if finding.wanted == 0:
        return _condition(ConditionType.READY, False, _stopped(finding), "no workers are to run")
    if finding.ready >= finding.wanted:
        return _condition(ConditionType.READY, True, "AllWorkersReady", counted)
    return _condition(ConditionType.READY, False, "WorkersMissing", counted)


def _progressing(finding: Finding) -> Condition:
    def progressing(reason: str, message: str, *, holds: bool = True) -> Condition:
        return _condition(ConditionType.PROGRESSING, holds, reason, message)

    if finding.wanted == 0:
        return progressing(_stopped(finding), "no workers are to run", holds=False)
    run = current_run(finding.job, finding.observed, Role.WORKER)
    if run and run.suspended and queued(finding.job):
        return progressing("Queued", "Kueue has not admitted the workers yet", holds=False)
    if any(other.name.role is Role.WORKER and other != run for other in finding.observed.runs):
        return progressing("Rolling", "workers with an earlier spec are leaving")
    if WorkerState.COLLECTING in finding.states:
        return progressing("Collecting", "workers are collecting")
    if WorkerState.WAITING_FOR_WEIGHTS in finding.states:
        return progressing("WaitingForWeights", "workers wait for the learner's first weights, or for newer ones")
    if WorkerState.WAITING_FOR_LEARNER in finding.states:
        return progressing("WaitingForLearner", "workers wait for the learner")
    return progressing("Starting", "workers are starting")


def _degraded(finding: Finding) -> Condition:
    found = finding.problem
    if found is None and finding.wanted:
        found = next(problems(finding.observed), None)
    if found is None:
        return _condition(ConditionType.DEGRADED, False, "AsExpected", "")
    return _condition(ConditionType.DEGRADED, True, found.reason, found.message)


def _end(finding: Finding, kind: ConditionType, stage: Stage) -> Condition:
    verdict = finding.verdict
    if verdict.stage is stage:
        return _condition(kind, True, verdict.reason, verdict.message)
    return _condition(kind, False, "NotEnded" if not verdict.ended else "EndedOtherwise", "")


def _failed(finding: Finding) -> Condition:
    verdict = finding.verdict
    if verdict.stage is Stage.AGAIN:  # still written down, until what failed is gone
        return _condition(ConditionType.FAILED, True, verdict.reason, verdict.message)
    return _end(finding, ConditionType.FAILED, Stage.FAILED)


def _suspended(finding: Finding) -> Condition:
    if finding.job.spec.suspend and not finding.verdict.ended:
        return _condition(ConditionType.SUSPENDED, True, "Suspended", "`spec.suspend` is true")
    run = current_run(finding.job, finding.observed, Role.WORKER)
    if run and run.suspended and queued(finding.job) and not finding.verdict.ended:
        return _condition(ConditionType.SUSPENDED, True, "Queued", "Kueue has not admitted the workers yet")
    return _condition(ConditionType.SUSPENDED, False, "NotSuspended", "")


def _stopped(finding: Finding) -> str:
    match finding.verdict.stage:
        case Stage.COMPLETE:
            return "Complete"
        case Stage.FAILED:
            return "Failed"
        case Stage.AGAIN:
            return "TryingAgain"
        case Stage.LIVE:
            return "Suspended"


def _condition(kind: ConditionType, holds: bool, reason: str, message: str) -> Condition:
    return Condition(
        type=kind,
        status=ConditionStatus.TRUE if holds else ConditionStatus.FALSE,
        reason=reason,
        message=message,
    )
