"""A job's status: a pure function of a snapshot."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Final

from pydantic import JsonValue, ValidationError

from rollfleet_api.kubernetes_names import selector
from rollfleet_api.messages import Evaluation, LearnerStatus, Statistic, WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.state.conditions import condition, conditions
from rollfleet_api.state.problems import clip, crashed, last_crash
from rollfleet_api.state.processes import Heartbeats
from rollfleet_api.state.snapshot import FRESH_S, Snapshot
from rollfleet_api.state.verdict import Stage
from rollfleet_api.status import (
    BatchesStatus,
    CollectorJobStatus,
    Condition,
    ConditionType,
    EnvServersStatus,
    EpisodeStatistic,
    EvaluationStatus,
    Phase,
    WaitsStatus,
    WorkersStatus,
)
from rollfleet_api.text import last_line
from rollfleet_api.times import format_time

INVALID: Final = "Invalid"
_OURS: Final = frozenset(map(str, ConditionType))


def status(snapshot: Snapshot) -> CollectorJobStatus:
    """Return the job's status now. Times, and values that are unknown now, stay as they were."""
    job, verdict = snapshot.job, snapshot.verdict
    before = job.status or CollectorJobStatus()
    devices = [pod.devices.get(job.spec.resources.gpu.resource, 0) for pod in snapshot.pods if pod.running]
    now = format_time(snapshot.now_s)
    now_known: dict[str, object] = {
        "observed_generation": job.metadata.generation,
        "phase": _phase(snapshot),
        "conditions": _timed(conditions(snapshot), before.conditions, job.metadata.generation, now),
        "workers": _workers(snapshot),
        "servers": _servers(snapshot),
        "selector": selector(job.metadata.name, Role.WORKER),
        "gpus": 0 if snapshot.stopped else sum(devices),
        "frames_per_second": 0.0 if snapshot.stopped else round(snapshot.frames_per_second, 1),
        "bottleneck": "" if snapshot.stopped else clip(snapshot.bottleneck),
        "restarts": sum(run.restarts for run in snapshot.observed.runs if run.role is Role.WORKER),
        "ready_time": _ready_time(snapshot, before, now),
        "start_time": before.start_time or (now if snapshot.running else None),
        "completion_time": (before.completion_time or now) if verdict.stage.ended else None,
        "last_error": _last_error(snapshot) or before.last_error,
        "newest_failure": _newest_failure(snapshot.heartbeats.workers.values()) or before.newest_failure,
    }
    return before.model_copy(update=now_known | reported(snapshot.heartbeats))


def ours(found: CollectorJobStatus) -> CollectorJobStatus:
    """Return a status without the conditions of other controllers."""
    return found.model_copy(update={"conditions": [each for each in found.conditions if each.type in _OURS]})


def is_transition(before: CollectorJobStatus | None, now: CollectorJobStatus) -> bool:
    """Return whether a condition changed, and not only a counter."""
    return before is None or _essence(before) != _essence(now)


def not_reconciled(
    before: Mapping[str, JsonValue], generation: int | None, reason: str, message: str, now_s: float
) -> CollectorJobStatus | None:
    """Return the status of a job that is invalid or cannot be reconciled; None: its status says so already.

    `before` is its present status, `reason` `Invalid` or `OperatorError`, and `message` has the errors.
    """
    found = [
        condition(ConditionType.READY, False, reason, ""),
        condition(ConditionType.DEGRADED, True, reason, message),
        condition(ConditionType.STALLED, reason == INVALID, reason, message),
    ]
    if reason == INVALID:
        found.append(condition(ConditionType.PROGRESSING, False, INVALID, ""))
    try:
        known = ours(CollectorJobStatus.model_validate(before, by_alias=True))
    except ValidationError:
        known = CollectorJobStatus()
    timed = _timed(found, known.conditions, generation, format_time(now_s))
    rest = [each for each in known.conditions if each.type not in {condition.type for condition in found}]
    now = known.model_copy(update={"conditions": [*rest, *timed], "observed_generation": generation})
    return None if now == known else now


def _essence(status: CollectorJobStatus) -> tuple[object, ...]:
    return (
        status.observed_generation,
        status.phase,
        status.workers.desired,
        {condition.type: (condition.status, condition.reason) for condition in ours(status).conditions},
    )


def _workers(snapshot: Snapshot) -> WorkersStatus:
    return (
        WorkersStatus(desired=snapshot.wanted, ready=snapshot.ready) if snapshot.job.spec.workers else WorkersStatus()
    )


def _servers(snapshot: Snapshot) -> EnvServersStatus | None:
    desired, run = snapshot.job.spec.size(Role.ENV_SERVER), snapshot.observed.current.get(Role.ENV_SERVER)
    if not desired or (run is None and not snapshot.stopped):  # on one machine they are processes of the worker
        return None
    return EnvServersStatus(desired=desired, ready=run.ready) if run and not snapshot.stopped else EnvServersStatus()


def _phase(snapshot: Snapshot) -> Phase:
    match snapshot.verdict.stage:
        case Stage.COMPLETE:
            return Phase.COMPLETE
        case Stage.FAILED:
            return Phase.FAILED
        case _ if snapshot.job.spec.suspend:
            return Phase.SUSPENDED
        case _:
            return Phase.RUNNING if snapshot.running else Phase.PENDING


def _ready_time(snapshot: Snapshot, before: CollectorJobStatus, now: str) -> str | None:
    """Return when all workers were first ready since the job's last failure; None: never."""
    if snapshot.verdict.stage in (Stage.FAILED, Stage.RETRY):
        return None
    return before.ready_time or (now if 0 < snapshot.wanted <= snapshot.ready else None)


def _last_error(snapshot: Snapshot) -> str | None:
    """Return the newest error of a worker: from its heartbeat, or from the end of its log."""
    failed = [(beat, line) for beat in snapshot.heartbeats.workers.values() if (line := last_line(beat.error))]
    newest, line = max(failed, key=lambda each: each[0].time_s, default=(None, ""))
    ended = last_crash(pod for pod in snapshot.observed.pods if pod.role is Role.WORKER)
    if newest and (ended is None or newest.time_s >= ended[0].crashed_s - FRESH_S):
        return clip(f"worker {newest.worker}: {line}")
    return clip(crashed(*ended).message) if ended else None


def _newest_failure(workers: Iterable[WorkerStatus]) -> str | None:
    newest = max((each for each in workers if each.newest_failure), key=lambda each: each.failed_s, default=None)
    return None if newest is None else clip(f"worker {newest.worker}, {newest.newest_failure}")


def reported(heartbeats: Heartbeats) -> dict[str, object]:
    """Return the fields that heartbeats report; without a learner none."""
    learner = heartbeats.learner
    if learner is None:
        return {}
    return {
        "frames": learner.frames,
        "mean_return": _rounded(learner.mean_return),
        "episode_statistics": {name: _statistic(each) for name, each in learner.episode_statistics.items()},
        "episodes": learner.episodes,
        "evaluation": _evaluation(learner.evaluation),
        "non_finite": learner.non_finite,
        "failed_episodes": learner.failed_episodes,
        "lag": learner.lag,
        "waits": _waits(learner, heartbeats.workers.values()),
        "published_version": learner.version or None,
        "applied_version": learner.applied_version or None,
        "batches": BatchesStatus(delivered=learner.batches, dropped=learner.dropped),
        "next_incarnation": learner.next_incarnation,
        "env_version": learner.env_version,
    }


def _waits(learner: LearnerStatus, workers: Iterable[WorkerStatus]) -> WaitsStatus:
    return WaitsStatus(
        learner_seconds=int(learner.waited_s),
        workers_for_learner_seconds=sum(
            int(worker.waited_for_space_s) + int(worker.waited_for_round_s) for worker in workers
        ),
        workers_for_weights_seconds=sum(int(worker.waited_for_weights_s) for worker in workers),
        workers_for_environments_seconds=sum(int(worker.waited_for_environments_s) for worker in workers),
    )


def _evaluation(found: Evaluation | None) -> EvaluationStatus | None:
    if found is None:
        return None
    return EvaluationStatus(version=found.version, mean_return=_rounded(found.mean_return), episodes=found.episodes)


def _statistic(found: Statistic) -> EpisodeStatistic:
    mean, least, greatest = (float(f"{value:.4g}") for value in (found.mean, found.min, found.max))
    return EpisodeStatistic(mean=mean, min=least, max=greatest, count=found.count)


def _rounded(value: float | None) -> float | None:
    """Round to four digits; None: unknown, or no number that JSON has."""
    return None if value is None or not isfinite(value) else float(f"{value:.4g}")


def _timed(found: list[Condition], before: list[Condition], generation: int | None, now: str) -> list[Condition]:
    """Return the conditions with the times of their last changes."""
    known = {condition.type: condition for condition in before}
    return [
        condition.model_copy(
            update={
                "last_transition_time": earlier.last_transition_time
                if (earlier := known.get(condition.type)) and earlier.status is condition.status
                else now,
                # A failure of an earlier spec keeps that spec's generation until the failed run is gone.
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
