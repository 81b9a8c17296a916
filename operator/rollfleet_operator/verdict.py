"""Whether a job goes on, is complete, has failed, or is to be tried again.

An end is for ever, and the status is where it is remembered: that is all that is read from there. One exception: a job
that failed is tried again when its spec changes, for that is how its user mends it.
"""

from dataclasses import dataclass
from enum import Enum, auto

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerPhase as LearnerPhase
from rollfleet_api.permissions import Role
from rollfleet_api.status import Condition, ConditionStatus, ConditionType
from rollfleet_operator import names
from rollfleet_operator.clock import parse_time
from rollfleet_operator.nats_port import Heartbeats
from rollfleet_operator.observed import Observed, Run
from rollfleet_operator.problems import Problem, crashed, last_crash, title, why_no_pods, why_not_running
from rollfleet_operator.revision import learner_revision, workers_revision
from rollfleet_operator.workloads import EXIT_HOPELESS


class Stage(Enum):
    """Where a job is in its life."""

    LIVE = auto()
    AGAIN = auto()
    COMPLETE = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A stage, and why."""

    stage: Stage
    reason: str = ""
    message: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come."""
        return self.stage in (Stage.COMPLETE, Stage.FAILED)


def current_run(job: CollectorJob, observed: Observed, role: Role) -> Run | None:
    """The run of a role that does what the job says now."""
    revision = workers_revision if role is Role.WORKER else learner_revision
    return observed.run(names.Workload(job.metadata.name, role, revision(job, observed.source_digest)))


def held(job: CollectorJob, kind: ConditionType) -> Condition | None:
    """The condition of the job's status, if it holds."""
    conditions = job.status.conditions if job.status else []
    return next((each for each in conditions if each.type == kind and each.status is ConditionStatus.TRUE), None)


def ended(job: CollectorJob) -> bool:
    """Whether an end of this spec has been written down."""
    failed = held(job, ConditionType.FAILED)
    return bool(held(job, ConditionType.COMPLETE) or (failed and failed.observed_generation == job.metadata.generation))


def verdict(job: CollectorJob, observed: Observed, heartbeats: Heartbeats, now_s: float) -> Verdict:
    """What is to become of a job."""
    complete, failed = held(job, ConditionType.COMPLETE), held(job, ConditionType.FAILED)
    if complete:
        return Verdict(Stage.COMPLETE, complete.reason, complete.message)
    if failed:
        if failed.observed_generation == job.metadata.generation:
            return Verdict(Stage.FAILED, failed.reason, failed.message)
        # As long as a failed run is still seen, the failure stays written down: it is not to be taken for a new one.
        if any(run.failed for run in observed.runs):
            return Verdict(Stage.AGAIN, failed.reason, failed.message)
        return Verdict(Stage.LIVE)
    found = _completion(job, observed, heartbeats) or _failure(job, observed, heartbeats)
    if found is None and not job.spec.suspend:
        found = _overdue(job, observed, now_s)
    return found or Verdict(Stage.LIVE)


def _completion(job: CollectorJob, observed: Observed, heartbeats: Heartbeats) -> Verdict | None:
    """Where the learner is a pod of the job, its end is the job's: it may have results to save after the last frame."""
    if job.spec.learner is not None:
        learner = current_run(job, observed, Role.LEARNER)
        return (
            Verdict(Stage.COMPLETE, "LearnerDone", "the learner has ended well")
            if learner and learner.complete
            else None
        )
    total, learned = job.spec.collect.total_frames, heartbeats.learner
    if total and learned and learned.frames >= total:
        return Verdict(Stage.COMPLETE, "TotalFrames", f"the learner has taken all {total} frames")
    workers = current_run(job, observed, Role.WORKER)
    told = heartbeats.control is not None and heartbeats.control.phase is LearnerPhase.COMPLETE
    if told or (workers and workers.complete):
        return Verdict(Stage.COMPLETE, "LearnerDone", "the learner has said that it is done")
    return None


def _failure(job: CollectorJob, observed: Observed, heartbeats: Heartbeats) -> Verdict | None:
    for role in Role:
        run = current_run(job, observed, role)
        if run and run.failed:
            pods = observed.pods_of(run)
            last = last_crash(pods)
            cause = crashed(*last).message if last else run.failed.message
            if role is Role.LEARNER:
                return Verdict(Stage.FAILED, "LearnerFailed", cause)
            hopeless = _hopeless(heartbeats) or last_crash(
                pod for pod in pods if pod.crash and pod.crash.code == EXIT_HOPELESS
            )
            if isinstance(hopeless, str):
                return Verdict(Stage.FAILED, "WorkerHopeless", hopeless)
            if hopeless:
                return Verdict(Stage.FAILED, "WorkerHopeless", crashed(*hopeless).message)
            allowed = job.spec.failure.max_restarts_per_worker
            return Verdict(Stage.FAILED, "TooManyRestarts", f"after {allowed} restarts {cause}")
    return None


def _hopeless(heartbeats: Heartbeats) -> str:
    """What a worker said that will not work however often it is tried; empty: none did."""
    for index, worker in sorted(heartbeats.workers.items()):
        if worker.fatal and worker.error:
            return f"worker {index}: {worker.error.strip().splitlines()[-1]}"
    return ""


def _overdue(job: CollectorJob, observed: Observed, now_s: float) -> Verdict | None:
    """Whether a pod has waited for longer than `failure.pendingDeadlineSeconds`."""
    deadline_s = job.spec.failure.pending_deadline_seconds
    if not deadline_s:
        return None
    # Pods from before the last failure tell nothing of this attempt.
    earliest_s = _since(job, ConditionType.FAILED)
    waits: list[tuple[float, Problem]] = []
    for pod in observed.pods:
        if not (pod.deleting or pod.running or pod.finished):
            cause = why_not_running(pod) or Problem("Pending", f"{title(pod)} has not started")
            # A node that came late has an image to pull.
            waits.append((max(pod.created_s, pod.placed_s, earliest_s), cause))
    refused, degraded = why_no_pods(observed.refused_pods), held(job, ConditionType.DEGRADED)
    if refused and degraded and degraded.reason == refused.reason:
        waits.append((_since(job, ConditionType.DEGRADED), refused))
    since_s, cause = min(waits, key=lambda wait: wait[0], default=(now_s, Problem("", "")))
    if now_s - since_s < deadline_s:
        return None
    return Verdict(
        Stage.FAILED, cause.reason, f"given up after {deadline_s} s (`pendingDeadlineSeconds`): {cause.message}"
    )


def _since(job: CollectorJob, kind: ConditionType) -> float:
    """When a condition last changed, whatever it says now; 0: never."""
    conditions = job.status.conditions if job.status else []
    times = [each.last_transition_time for each in conditions if each.type == kind]
    return parse_time(times[0]) if times and times[0] else 0.0
