"""What makes workers, or the learner, start anew: a hash of the fields that they read only once.

It covers what the user wrote and nothing else, so that a new operator, with another default image or another pod
template, restarts nobody. What is not listed counts: a field that is new to us rolls the workers, rather than being
silently ignored.
"""

from typing import Any, Final

from rollfleet_api.job import CollectorJob
from rollfleet_operator.manifest import digest

_NOT_FOR_WORKERS: Final[dict[str, Any]] = {
    "workers": True,
    "suspend": True,
    "delivery": True,
    "learner": True,
    "ttl_seconds_after_finished": True,
    "autoscale": True,
    "failure": {"pending_deadline_seconds", "suspect_after_seconds"},
    "collect": {"total_frames", "init_random_frames", "cat_results"},
    "weights": {"interval"},
}
_FOR_LEARNER: Final[dict[str, Any]] = {
    **dict.fromkeys(("learner", "mode", "env", "policy", "source", "collect", "weights", "stragglers"), True),
    "failure": {"suspect_after_seconds"},
}


def workers_revision(job: CollectorJob, source_digest: str = "") -> str:
    """Changes when running workers would no longer do what the job says.

    Args:
        job: The job.
        source_digest: Of the files in the job's ConfigMap; empty: it names none.
    """
    said = job.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, exclude=_NOT_FOR_WORKERS
    )
    return digest({"spec": _without_empty(said), "source": source_digest})


def learner_revision(job: CollectorJob, source_digest: str = "") -> str:
    """Changes when a running learner would no longer do what the job says."""
    said = job.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, include=_FOR_LEARNER
    )
    return digest({"spec": _without_empty(said), "source": source_digest})


def _without_empty(said: dict[str, Any]) -> dict[str, Any]:
    """Without the parts that say nothing: `weights: {}` and no `weights` mean the same."""
    return {key: value for key, value in said.items() if value not in ({}, [])}
