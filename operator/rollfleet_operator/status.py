"""A job's status: a pure function of the job, of what is there, of what was heard, and of the time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue, ValidationError

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import WorkerState
from rollfleet_api.permissions import Role
from rollfleet_api.status import (
    BatchesStatus,
    CollectorJobStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    Phase,
    WorkersStatus,
)
from rollfleet_operator import names
from rollfleet_operator.clock import format_time
from rollfleet_operator.conditions import Finding, conditions
from rollfleet_operator.nats_port import Heartbeats
from rollfleet_operator.observed import Observed, Pod
from rollfleet_operator.problems import Problem, crashed, last_crash
from rollfleet_operator.verdict import Stage, Verdict, current_run

FRESH_S = 30.0
"""A worker that has said nothing for so long is not ready. Heartbeats come once a second; clocks may differ."""


_OURS: Final = frozenset(map(str, ConditionType))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What is seen of a job at one moment.

    Attributes:
        observed: Its children.
        heartbeats: What was heard.
        verdict: What is to become of it.
        problem: What went wrong when its children were made; None: nothing.
        frames_per_second: Over the last half minute.
        now_s: The time.
    """

    observed: Observed
    heartbeats: Heartbeats
    verdict: Verdict
    problem: Problem | None
    frames_per_second: float
    now_s: float


def status(job: CollectorJob, snapshot: Snapshot) -> CollectorJobStatus:
    """The job's status now. Of the one before, times are kept, and what is not known any more."""
    before = job.status or CollectorJobStatus()
    verdict, learner = snapshot.verdict, snapshot.heartbeats.learner
    stopped = job.spec.suspend or verdict.ended or verdict.stage is Stage.AGAIN
    pods = _live_pods(job, snapshot)
    ready = 0 if stopped else sum(_reports(pod, snapshot) for pod in pods)
    finding = Finding(
        job=job,
        verdict=verdict,
        wanted=0 if stopped else job.spec.workers,
        ready=ready,
        running=any(pod.running for pod in pods),
        observed=snapshot.observed,
        states=frozenset(_states(pods, snapshot)),
        problem=snapshot.problem,
    )
    now = format_time(snapshot.now_s)
    return CollectorJobStatus(
        observed_generation=job.metadata.generation,
        phase=_phase(job, finding),
        conditions=_timed(conditions(finding), before.conditions, job.metadata.generation, now),
        workers=WorkersStatus(desired=finding.wanted, ready=ready),
        selector=names.selector(job.metadata.name, Role.WORKER),
        gpus=0 if stopped else sum(pod.devices.get(job.spec.resources.gpu.resource, 0) for pod in pods if pod.running),
        frames=learner.frames if learner else before.frames,
        frames_per_second=0.0 if stopped else round(snapshot.frames_per_second, 1),
        published_version=(learner.version or None) if learner else before.published_version,
        applied_version=(learner.applied_version or None) if learner else before.applied_version,
        batches=BatchesStatus(delivered=learner.batches, dropped=learner.dropped) if learner else before.batches,
        restarts=sum(run.restarts for run in snapshot.observed.runs if run.name.role is Role.WORKER),
        start_time=before.start_time or (now if finding.running else None),
        completion_time=(before.completion_time or now) if verdict.ended else None,
        last_error=_last_error(snapshot) or before.last_error,
    )


def ours(found: CollectorJobStatus) -> CollectorJobStatus:
    """A status without the conditions that other controllers added."""
    return found.model_copy(update={"conditions": [each for each in found.conditions if each.type in _OURS]})


def is_transition(before: CollectorJobStatus | None, now: CollectorJobStatus) -> bool:
    """Whether something changed that somebody waits for, and not just a number."""
    return before is None or _essence(before) != _essence(now)


def invalid(
    before: Mapping[str, JsonValue], generation: int | None, message: str, now_s: float
) -> CollectorJobStatus | None:
    """The status of a job that cannot be understood; None: it says so already.

    Args:
        before: What it says now, as the API server has it.
        generation: Of the spec.
        message: What is wrong with it.
        now_s: The time.
    """
    try:
        known = ours(CollectorJobStatus.model_validate(before, by_alias=True))
    except ValidationError:
        known = CollectorJobStatus()
    found = [
        Condition(type=ConditionType.PROGRESSING, status=ConditionStatus.FALSE, reason="Invalid"),
        Condition(type=ConditionType.DEGRADED, status=ConditionStatus.TRUE, reason="Invalid", message=message),
    ]
    told = _timed(found, known.conditions, generation, format_time(now_s))
    rest = [each for each in known.conditions if each.type not in {condition.type for condition in found}]
    now = known.model_copy(update={"conditions": [*rest, *told], "observed_generation": generation})
    return None if now == known else now


def _essence(status: CollectorJobStatus) -> tuple[object, ...]:
    return (
        status.observed_generation,
        status.phase,
        status.workers.desired,
        {condition.type: (condition.status, condition.reason) for condition in ours(status).conditions},
    )


def _phase(job: CollectorJob, finding: Finding) -> Phase:
    match finding.verdict.stage:
        case Stage.COMPLETE:
            return Phase.COMPLETE
        case Stage.FAILED:
            return Phase.FAILED
        case _ if job.spec.suspend:
            return Phase.SUSPENDED
        case _:
            return Phase.RUNNING if finding.running else Phase.PENDING


def _live_pods(job: CollectorJob, snapshot: Snapshot) -> list[Pod]:
    """The workers that do what the job says now; one that is leaving counts no more."""
    pods = snapshot.observed.pods_of(current_run(job, snapshot.observed, Role.WORKER))
    return [pod for pod in pods if not pod.deleting and not pod.finished]


def _reports(pod: Pod, snapshot: Snapshot) -> bool:
    """Whether a worker runs and says so: one that still imports its libraries is not ready."""
    beat = snapshot.heartbeats.workers.get(pod.index)
    return (
        pod.running
        and beat is not None
        and beat.state not in (WorkerState.STARTING, WorkerState.FAILED)
        # What was said before this pod was there, an earlier one said.
        and beat.time_s >= pod.created_s
        and snapshot.now_s - beat.time_s < FRESH_S
    )


def _states(pods: list[Pod], snapshot: Snapshot) -> list[WorkerState]:
    beats = snapshot.heartbeats.workers
    return [beats[pod.index].state for pod in pods if pod.index in beats and _reports(pod, snapshot)]


def _last_error(snapshot: Snapshot) -> str | None:
    """What the last worker to break said of it: by itself, or by the end of its log."""
    said = [beat for beat in snapshot.heartbeats.workers.values() if beat.error]
    newest = max(said, key=lambda beat: beat.time_s, default=None)
    ended = last_crash(pod for pod in snapshot.observed.pods if pod.role is Role.WORKER)
    if newest and newest.error and (ended is None or newest.time_s >= ended[1].finished_s - FRESH_S):
        return f"worker {newest.worker}: {newest.error.strip().splitlines()[-1]}"
    return crashed(*ended).message if ended else None


def _timed(found: list[Condition], before: list[Condition], generation: int | None, now: str) -> list[Condition]:
    """The conditions with the times at which they last changed."""
    known = {condition.type: condition for condition in before}
    return [
        condition.model_copy(
            update={
                "last_transition_time": earlier.last_transition_time
                if (earlier := known.get(condition.type)) and earlier.status is condition.status
                else now,
                # A failure that belongs to an earlier spec keeps saying so until it is over.
                "observed_generation": earlier.observed_generation
                if earlier
                and condition.type == ConditionType.FAILED
                and condition.reason == earlier.reason
                and condition.status is earlier.status
                else generation,
            }
        )
        for condition in found
    ]
