"""The verdict on a job: it is live, complete, failed, or waits for a retry.

An end is permanent, and the status is its memory: nothing else is read from the status. One exception: a failed job is
tried again when its spec changes, because that is how users fix it.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from rollfleet_api.exit_codes import EXIT_PERMANENT
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerPhase
from rollfleet_api.permissions import Role
from rollfleet_api.state.problems import Problem, crashed, last_crash, title, why_no_pods, why_not_running
from rollfleet_api.state.processes import Heartbeats, Processes
from rollfleet_api.status import CollectorJobStatus, ConditionType
from rollfleet_api.text import reason_of
from rollfleet_api.times import parse_time

RESTART_S: Final = 1800.0
"""The seconds in which a worker may use up one restart: ten restarts are too many only within five hours."""


NEEDED: Final = (Role.WORKER, Role.LEARNER)
"""The roles without which a job cannot go on: evaluation workers never end it."""


class Stage(Enum):
    """The stage of a job."""

    LIVE = auto()
    RETRY = auto()
    COMPLETE = auto()
    FAILED = auto()

    @property
    def ended(self) -> bool:
        """Whether a job in this stage has ended."""
        return self in (Stage.COMPLETE, Stage.FAILED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A stage of a job, and its reason: one CamelCase word, and a sentence."""

    stage: Stage
    reason: str = ""
    message: str = ""


def verdict(job: CollectorJob, observed: Processes, heartbeats: Heartbeats, now_s: float) -> Verdict:
    """Decide the stage of a job."""
    known = job.status or CollectorJobStatus()
    complete, failed = known.held(ConditionType.COMPLETE), known.held(ConditionType.FAILED)
    if complete:
        return Verdict(Stage.COMPLETE, complete.reason, complete.message)
    if failed:
        if job.has_ended:
            return Verdict(Stage.FAILED, failed.reason, failed.message)
        # While the failed run still exists, the failure stays in the status: it must not count as a new one.
        if any(run.failed is not None or run.suspended for run in observed.runs):
            return Verdict(Stage.RETRY, failed.reason, failed.message)
        return Verdict(Stage.LIVE)
    found = _completion(job, observed, heartbeats) or _failure(observed, heartbeats)
    found = found or _restarts_used_up(job, observed, now_s)
    if found is None and not job.spec.suspend:
        found = _overdue(job, observed, now_s) or _abandoned(job, heartbeats, now_s)
    return found or Verdict(Stage.LIVE)


def _completion(job: CollectorJob, observed: Processes, heartbeats: Heartbeats) -> Verdict | None:
    """The end of a learner's pod is the job's end: it may save results first. A removed pod may exit with 0, too."""
    servers, limit_s = observed.current.get(Role.ENV_SERVER), job.spec.failure.learner_timeout_seconds
    if servers and servers.complete and not job.spec.workers:  # each has left by itself
        message = f"no program has stepped the environments for {limit_s} s (`failure.learnerTimeoutSeconds`)"
        return Verdict(Stage.COMPLETE, "ServersUnused", message)
    run = observed.current.get(Role.LEARNER)
    done = any(pod.done for pod in observed.pods_of(run))
    if (job.spec.learner or run) and not done and not (run and run.complete):
        return None
    known = job.status or CollectorJobStatus()
    total, frames = job.spec.collect.total_frames, heartbeats.learner.frames if heartbeats.learner else known.frames
    if total and frames >= total:
        return Verdict(Stage.COMPLETE, "TotalFrames", f"the learner has taken all {total} frames")
    after = f"after {frames} of {total} frames" if total else f"after {frames} frames"
    if is_completed(job, observed, heartbeats):
        return Verdict(Stage.COMPLETE, "LearnerDone", f"the learner has completed the job {after}")
    return Verdict(Stage.COMPLETE, "LearnerExited", f"the learner exited with code 0 {after}") if done else None


def is_completed(job: CollectorJob, observed: Processes, heartbeats: Heartbeats) -> bool:
    """Whether the learner has completed the job, as it or a worker says, or as all workers' exit code 0 does.

    That code of a program that was never heard is no proof: it may be no worker of ours. If no one was heard, because
    the operator was away, the status must know frames.
    """
    learner, follows = heartbeats.learner, [worker.follows for worker in heartbeats.workers.values()]
    said = [(each.session, each.complete) for each in follows if each]
    if learner:
        said.append((learner.session, learner.phase is LearnerPhase.COMPLETE))
    if said and max(said)[1]:  # a later learner may go on
        return True
    workers, known = observed.current.get(Role.WORKER), job.status or CollectorJobStatus()
    heard = bool(follows) or (not said and known.frames > 0)
    return workers is not None and workers.complete and heard


def begins_again(heartbeats: Heartbeats) -> bool:
    """Whether the learner has begun after the one that let the workers go: it needs them again."""
    learner, workers = heartbeats.learner, heartbeats.workers.values()
    followed = max((worker.follows.session for worker in workers if worker.follows), default=0)
    return learner is not None and learner.phase is not LearnerPhase.COMPLETE and 0 < followed < learner.session


def _failure(observed: Processes, heartbeats: Heartbeats) -> Verdict | None:
    for role in NEEDED:
        run = observed.current.get(role)
        if run and run.failed is not None:
            pods = observed.pods_of(run)  # when one fails for good, Kubernetes ends the others
            first = [pod for pod in pods if pod.crash and pod.crash.code == EXIT_PERMANENT and role is Role.WORKER]
            last = last_crash(first or pods)
            cause = crashed(*last).message if last else run.failed
            if role is Role.LEARNER:
                return Verdict(Stage.FAILED, "LearnerFailed", cause)
            return Verdict(Stage.FAILED, "WorkerFailed", _permanent(heartbeats) or cause)
    return None


def crashes_count_from(job: CollectorJob, now_s: float) -> float:
    """Return the time from which on crashes use up restarts.

    Over months any worker crashes many times: only those of the last `RESTART_S` for each allowed restart count. Those
    of before the last failure do not count for this attempt.
    """
    allowed = job.spec.failure.max_restarts_per_worker
    return max(now_s - RESTART_S * allowed if allowed else 0.0, _since(job, ConditionType.FAILED))


def _restarts_used_up(job: CollectorJob, observed: Processes, now_s: float) -> Verdict | None:
    """Return a failure if a worker, or the learner, has used up `failure.maxRestartsPerWorker`."""
    allowed, earliest_s = job.spec.failure.max_restarts_per_worker, crashes_count_from(job, now_s)
    for role in NEEDED:
        run = observed.current.get(role)
        pods = [pod for pod in observed.pods_of(run) if pod.counts and pod.crashed_s > earliest_s]
        index, crashes = max(Counter(pod.index for pod in pods).items(), key=lambda each: each[1], default=(0, 0))
        last = last_crash(pod for pod in pods if pod.index == index)
        if crashes > allowed and last:
            reason = "TooManyRestarts" if role is Role.WORKER else "LearnerFailed"
            restarts = f"{crashes - 1} restart{'s' * (crashes != 2)}"
            return Verdict(Stage.FAILED, reason, f"after {restarts} {crashed(*last).message}")
    return None


def _permanent(heartbeats: Heartbeats) -> str:
    """Return the error of a worker that would fail again on each restart; empty: no worker has one."""
    for index, worker in sorted(heartbeats.workers.items()):
        if worker.fatal and worker.error:
            return f"worker {index}: {reason_of(worker.error)}"
    return ""


def _overdue(job: CollectorJob, observed: Processes, now_s: float) -> Verdict | None:
    """Return a failure if a pod has waited for longer than `failure.pendingDeadlineSeconds`.

    Once all workers were ready, the job can run on this cluster: a worker that has lost its node waits for another one.
    """
    deadline_s = job.spec.failure.pending_deadline_seconds
    known = job.status or CollectorJobStatus()
    if not deadline_s or known.ready_time:
        return None
    # Waits of before the last failure do not count for this attempt.
    earliest_s = _since(job, ConditionType.FAILED)
    waits: list[tuple[float, Problem]] = []
    for pod in observed.pods:
        if pod.role is not Role.EVALUATION and not (pod.deleting or pod.running or pod.finished):
            cause = why_not_running(pod) or Problem("Pending", f"{title(pod)} has not started")
            # The wait starts again on the node: a new node must pull the image.
            waits.append((max(pod.created_s, pod.placed_s, earliest_s), cause))
    refused, degraded = why_no_pods(observed.refused_pods), known.held(ConditionType.DEGRADED)
    if refused and degraded and degraded.reason == refused.reason:
        waits.append((_since(job, ConditionType.DEGRADED), refused))
    since_s, cause = min(waits, key=lambda wait: wait[0], default=(now_s, Problem("", "")))
    if now_s - since_s < deadline_s:
        return None
    return Verdict(
        Stage.FAILED, cause.reason, f"given up after {deadline_s} s (`pendingDeadlineSeconds`): {cause.message}"
    )


def _abandoned(job: CollectorJob, heartbeats: Heartbeats, now_s: float) -> Verdict | None:
    """Return a failure if no learner has sent a heartbeat for `failure.learnerTimeoutSeconds`.

    The time starts again when the job is suspended, waits in a queue, or is resumed: a learner in the cluster is, too.
    And when NATS or the operator comes back: no heartbeat could arrive before. Without workers, servers count the time.
    """
    limit_s, learner = job.spec.failure.learner_timeout_seconds, heartbeats.learner
    known = job.status or CollectorJobStatus()
    if not (limit_s and job.spec.workers) or (job.spec.learner and known.held(ConditionType.SUSPENDED)):
        return None
    last_s = learner.time_s if learner else parse_time(job.metadata.creation_timestamp or "")
    again_s = max(_since(job, ConditionType.FAILED), _since(job, ConditionType.SUSPENDED))  # as in `_overdue`
    if now_s - max(last_s, again_s, heartbeats.since_s) < limit_s:
        return None
    message = f"no learner has sent a heartbeat for {limit_s} s (`failure.learnerTimeoutSeconds`)"
    return Verdict(Stage.FAILED, "LearnerGone", message)


def _since(job: CollectorJob, kind: ConditionType) -> float:
    """Return the time of a condition's last change; 0: it has none."""
    found = job.status.condition(kind) if job.status else None
    return parse_time(found.last_transition_time) if found and found.last_transition_time else 0.0
