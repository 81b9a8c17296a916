"""How long a job stays after its end."""

from rollfleet_api.job import CollectorJob, CollectorJobStatus
from rollfleet_api.status import ConditionType
from rollfleet_operator.clock import parse_time
from rollfleet_operator.verdict import held

LINGER_S = 30.0
"""Workers leave by themselves when a job is complete; one that has not left by then is stopped."""


def expires_in_s(job: CollectorJob, status: CollectorJobStatus, now_s: float) -> float | None:
    """Seconds until the job is to be deleted (0: now); None: never, or it has not ended."""
    ttl_s = job.spec.ttl_seconds_after_finished
    if ttl_s is None or status.completion_time is None:
        return None
    return max(0.0, parse_time(status.completion_time) + ttl_s - now_s)


def lingers_for_s(job: CollectorJob, now_s: float) -> float:
    """Seconds that workers of a complete job may still take to leave; the end is counted from its first look."""
    ended = job.status.completion_time if job.status else None
    return LINGER_S if ended is None else max(0.0, parse_time(ended) + LINGER_S - now_s)


def is_over(job: CollectorJob, now_s: float) -> bool:
    """Whether nobody will come back to a complete job: its learner was a pod of it, and its workers had time to leave.

    A learner that is somewhere else may start again, and has to find that its job is complete.
    """
    complete = held(job, ConditionType.COMPLETE) is not None
    return complete and job.spec.learner is not None and lingers_for_s(job, now_s) == 0
