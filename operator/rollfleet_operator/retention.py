"""The time that a job, and its workers, stay after its end."""

from rollfleet_api.job import CollectorJob, CollectorJobStatus
from rollfleet_api.times import parse_time

LINGER_S = 30.0
"""Workers leave by themselves when their job is complete; after this time the operator stops the others."""


def expires_in_s(job: CollectorJob, status: CollectorJobStatus, now_s: float) -> float | None:
    """Return the seconds until the job's deletion (0: now); None: never, or it has not ended."""
    ttl_s = job.spec.ttl_seconds_after_finished
    if ttl_s is None or status.completion_time is None:
        return None
    return max(0.0, parse_time(status.completion_time) + ttl_s - now_s)


def lingers_for_s(job: CollectorJob, now_s: float) -> float:
    """Return the seconds that the workers of a complete job still have to leave."""
    ended = job.status.completion_time if job.status else None
    return LINGER_S if ended is None else max(0.0, parse_time(ended) + LINGER_S - now_s)
