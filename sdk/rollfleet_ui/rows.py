"""Rows of the page from a job at one moment: the same for every source, so that they never disagree."""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from rollfleet_api.diagnosis import Diagnosis
from rollfleet_api.frame_rate import STALE_S
from rollfleet_api.messages import WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.state.problems import last_crash
from rollfleet_api.state.snapshot import FRESH_S, Snapshot
from rollfleet_api.text import last_line, one_line
from rollfleet_api.times import parse_time
from rollfleet_api.views import JobView
from rollfleet_ui.model import JobRow, WorkerRow

SKETCH_POINTS = 30


def job_row(job: JobView, diagnosis: Diagnosis, returns: Sequence[float] = ()) -> JobRow:
    """Return the row of a job. `returns` are mean returns for the sketch of its curve."""
    status = job.status
    return JobRow(
        key=job.key,
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        uid=job.metadata.uid,
        phase=status.phase or "Unknown",
        diagnosis=diagnosis,
        workers_ready=status.workers.ready,
        workers_desired=status.workers.desired,
        frames=status.frames,
        total_frames=job.spec.collect.total_frames,
        frames_per_second=status.frames_per_second,
        mean_return=status.mean_return,
        returns=list(returns),
        published_version=status.published_version,
        applied_version=status.applied_version,
        lag=job.lag,
        created=job.metadata.creation_timestamp.timestamp(),
        ended=parse_time(status.completion_time) if status.completion_time else None,
    )


@lru_cache(maxsize=1)  # those of 65,536 workers take seconds, and 86 MiB
def worker_rows(snapshot: Snapshot) -> list[WorkerRow]:
    """Return a row for each worker by index, then those of evaluation workers, then the learner's."""
    beats, learner = snapshot.heartbeats.workers, snapshot.heartbeats.learner
    pods = _by_index(snapshot, Role.WORKER)
    known = {*range(snapshot.job.spec.workers)} if snapshot.wanted else {*pods, *beats}
    published = learner.version if learner else None
    rows = [_worker(snapshot, index, pods[index], beats.get(index), published) for index in sorted(known | {*pods})]
    evaluations = [_evaluation(snapshot, each) for _, each in sorted(_by_index(snapshot, Role.EVALUATION).items())]
    return [*rows, *evaluations, _learner(snapshot, _by_index(snapshot, Role.LEARNER)[0])]


def _worker(
    snapshot: Snapshot, index: int, pods: Sequence[Pod], beat: WorkerStatus | None, published: int | None
) -> WorkerRow:
    pod = pods[-1] if pods else None
    current = beat is not None and (pod is None or beat.time_s >= pod.created_s)
    row = _of_beat(beat, published) if beat else WorkerRow(process=f"worker {index}", index=index, state="")
    state, silent = _pod_state(pod), beat is not None and abs(snapshot.now_s - beat.time_s) >= FRESH_S
    if not state:
        state = "Silent" if silent else str(beat.state) if beat and current else "Starting"
    elif state == "Ended" and beat and current and beat.state.ended:  # the worker knows why it ended
        state = str(beat.state)
    return row.model_copy(
        update={
            "state": state,
            "frames_per_second": row.frames_per_second if current and not silent and not snapshot.stopped else 0.0,
            "last_error": row.last_error or _error(pods),
            **_of_pods(snapshot, pods),
        }
    )


def _of_beat(beat: WorkerStatus, published: int | None) -> WorkerRow:
    """Return what a worker's heartbeat says. `published` is the newest version of the weights; None: unknown."""
    return WorkerRow(
        process=f"worker {beat.worker}",
        index=beat.worker,
        state=beat.state,
        incarnation=beat.incarnation,
        version=beat.version or None,
        lag=max(published - beat.version, 0) if published and beat.version else None,
        frames=beat.frames,
        frames_per_second=beat.frames_per_second,
        mean_return=_finite(beat.mean_return),
        last_error=one_line(last_line(beat.error)),
    )


def _learner(snapshot: Snapshot, pods: Sequence[Pod]) -> WorkerRow:
    beat, state = snapshot.heartbeats.learner, _pod_state(pods[-1]) if pods else ""
    if not state:
        fresh = beat is not None and abs(snapshot.now_s - beat.time_s) < STALE_S
        state = "Connected" if fresh else "Silent" if beat else "Missing"
    row = WorkerRow(process="learner", state=state, last_error=_error(pods))
    found = _of_pods(snapshot, pods)
    if beat:
        found |= {
            "incarnation": beat.session,
            "version": beat.version or None,
            "lag": beat.lag,
            "frames": beat.frames,
            "frames_per_second": snapshot.frames_per_second,
            "mean_return": _finite(beat.mean_return),
        }
    return row.model_copy(update=found)


def _evaluation(snapshot: Snapshot, pods: Sequence[Pod]) -> WorkerRow:
    state = _pod_state(pods[-1]) or "Running"
    row = WorkerRow(process=pods[-1].process, state=state, last_error=_error(pods))
    return row.model_copy(update=_of_pods(snapshot, pods))


def _pod_state(pod: Pod | None) -> str:
    """Return the state of a pod that does not run; empty: it runs; `Ended`: it ended in order."""
    state = pod.state if pod else "Pending"
    return {"Running": "" if pod and pod.running else "Pending", "Succeeded": "Ended"}.get(state, state)


def _of_pods(snapshot: Snapshot, pods: Sequence[Pod]) -> dict[str, object]:
    if not pods:
        return {}
    return {
        "restarts": sum(pod.counts for pod in pods),
        "node": pods[-1].node,
        "gpus": pods[-1].devices.get(snapshot.job.spec.resources.gpu.resource, 0),
        "has_previous": len(pods) > 1,
        "since": pods[-1].placed_s or pods[-1].created_s,
    }


def _error(pods: Sequence[Pod]) -> str:
    """Return why the newest pod does not run, or the last output of the newest that crashed."""
    newest = last_crash(pods)
    return one_line((pods[-1].message if pods else "") or (newest[0].message if newest else ""))


def _by_index(snapshot: Snapshot, role: Role) -> defaultdict[int, list[Pod]]:
    """Return the pods of a role by index, the oldest of each first."""
    found: defaultdict[int, list[Pod]] = defaultdict(list)
    for pod in sorted(snapshot.observed.pods, key=lambda pod: (pod.created_s, pod.name)):
        if pod.role is role:
            found[pod.index].append(pod)
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
