"""The workers and the learner of a job as rows of the page: from their pods and their heartbeats."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from rollfleet_api.frame_rate import STALE_S
from rollfleet_api.messages import WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.text import one_line
from rollfleet_operator.manifest import Ref, ref
from rollfleet_operator.observed import Run
from rollfleet_operator.problems import last_crash
from rollfleet_operator.snapshot import FRESH_S, Snapshot
from rollfleet_ui.model import ObjectRow, WorkerRow
from rollfleet_ui.rows import learner_row, worker_row


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


def object_rows(snapshot: Snapshot) -> list[ObjectRow]:
    """Return the objects that a job became, except its pods."""
    states = {Ref("Job", str(run.name)): _state_of_run(run) for run in snapshot.observed.runs}
    if server := snapshot.observed.server:
        states[ref(server)] = "Ready" if snapshot.observed.server_ready else "Starting"
    children = sorted(snapshot.observed.children)
    return [ObjectRow(kind=each.kind, name=each.name, state=states.get(each, "")) for each in children]


def _worker(
    snapshot: Snapshot, index: int, pods: Sequence[Pod], beat: WorkerStatus | None, published: int | None
) -> WorkerRow:
    pod = pods[-1] if pods else None
    current = beat is not None and (pod is None or beat.time_s >= pod.created_s)
    row = worker_row(beat, published) if beat else WorkerRow(process=f"worker {index}", index=index, state="")
    state, silent = _pod_state(pod), beat is not None and abs(snapshot.now_s - beat.time_s) >= FRESH_S
    if not state or state == "Ended":  # the pod runs, or the worker knows why it ended
        state = "Silent" if silent and not state else str(beat.state) if beat and current else state or "Starting"
    return row.model_copy(
        update={
            "state": state,
            "frames_per_second": row.frames_per_second if current and not silent and not snapshot.stopped else 0.0,
            "last_error": row.last_error or _error(pods),
            **_of_pods(snapshot, pods),
        }
    )


def _learner(snapshot: Snapshot, pods: Sequence[Pod]) -> WorkerRow:
    beat = snapshot.heartbeats.learner
    state = _pod_state(pods[-1] if pods else None) if pods else ""
    if not state or state == "Ended":
        fresh = beat is not None and abs(snapshot.now_s - beat.time_s) < STALE_S
        state = state or ("Connected" if fresh else "Silent" if beat else "Missing")
    row = learner_row(beat, state, snapshot.frames_per_second)
    return row.model_copy(update={"last_error": _error(pods), **_of_pods(snapshot, pods)})


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


def _state_of_run(run: Run) -> str:
    if run.complete:
        return "Complete"
    return "Failed" if run.finished else "Suspended" if run.suspended else "Running"
