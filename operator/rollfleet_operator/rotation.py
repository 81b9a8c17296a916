"""The rotation of a job's credentials on request: the annotation `rollfleet.dev/rotate` holds a time.

Credentials from before that time are renewed at once. NATS refuses them `REVOKED_AFTER_S` later: until then the kubelet
has brought the new ones to the pods, and running programs have connected with them.
"""

from typing import Final

from rollfleet_api.job import CollectorJob
from rollfleet_api.times import parse_time
from rollfleet_operator import names
from rollfleet_operator.problems import Problem, clip

REVOKED_AFTER_S: Final = 600


def rotation_s(job: CollectorJob, now_s: float) -> int | None:
    """Return the time, in seconds since the epoch, from before which credentials are renewed; None: renew none."""
    try:
        requested_s = int(parse_time(job.metadata.annotations.get(names.ROTATE, "")))
    except ValueError:
        return None
    return requested_s if requested_s <= now_s else None


def revoked_s(job: CollectorJob, now_s: float, renewed_s: int = 0) -> int | None:
    """Return the time from before which NATS refuses credentials; None: it refuses none.

    `renewed_s`: when the newest ones were issued. An operator that was away renews them late.
    """
    requested_s = rotation_s(job, now_s)
    late = requested_s is not None and now_s >= max(requested_s, renewed_s) + REVOKED_AFTER_S
    return requested_s if late else None


def unreadable(job: CollectorJob) -> Problem | None:
    """Return what is wrong with the annotation."""
    written = job.metadata.annotations.get(names.ROTATE)
    try:
        parse_time(written if written is not None else "2026-01-01T00:00:00Z")
    except ValueError:
        expected = "expected a time such as `2026-01-31T12:00:00Z`"
        return Problem("AnnotationInvalid", clip(f"annotation `{names.ROTATE}`: {expected}, got `{written}`"))
    return None
