"""Revisions of workers and learner: hashes of the fields that they read only at their start.

A changed revision restarts them. It depends only on what the user wrote: a new operator, with another default image or
pod template, restarts no pods. Fields that are not listed count: a new field restarts the workers instead of being
ignored silently.
"""

from collections.abc import Collection
from typing import Any, Final

from rollfleet_api.job import CollectorJob
from rollfleet_operator.manifest import Manifest, digest

_NOT_FOR_WORKERS: Final[dict[str, Any]] = {
    "workers": True,
    "suspend": True,
    "delivery": True,
    "learner": True,
    "evaluation": True,
    "ttl_seconds_after_finished": True,
    "autoscale": True,
    "failure": {"pending_deadline_seconds", "suspect_after_seconds", "learner_timeout_seconds"},
    "collect": {"total_frames", "init_random_frames", "cat_results"},
    "weights": {"interval"},
}
_FOR_LEARNER: Final[dict[str, Any]] = {
    **dict.fromkeys(("learner", "mode", "env", "policy", "source"), True),
    "collect": {"cat_results", "traj_format"},
    "weights": {"precision", "scheme"},
}
_FOR_EARLIER_LEARNER: Final[dict[str, Any]] = {
    **_FOR_LEARNER,
    **dict.fromkeys(("collect", "weights", "stragglers"), True),
    "failure": {"suspect_after_seconds"},
}


def workers_revision(job: CollectorJob, source_digest: str = "") -> str:
    """Return the revision of the workers, which changes when they must restart.

    Args:
        job: The job.
        source_digest: Digest of the files in the job's ConfigMap; empty: the job has none.
    """
    written = job.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, exclude=_NOT_FOR_WORKERS
    )
    return digest({"spec": _without_empty(written), "source": source_digest})


def evaluation_revision(job: CollectorJob, source_digest: str = "") -> str:
    """Return the revision of the evaluation workers: they restart with the workers, and when `evaluation` changes."""
    evaluation = job.spec.evaluation
    written = evaluation.model_dump(mode="json", by_alias=True) if evaluation else None
    return digest({"workers": workers_revision(job, source_digest), "evaluation": written})


def learner_revision(job: CollectorJob, source_digest: str = "", present: Collection[str] = ()) -> str:
    """Return the revision of the learner, which changes when it must restart.

    Args:
        job: The job.
        source_digest: As above.
        present: Revisions of the job's runs. A learner that an earlier operator started has one of more fields: it
            reads them at its start, as its image is as old.
    """
    earlier = _learner_revision(job, source_digest, _FOR_EARLIER_LEARNER)
    return earlier if earlier in present else _learner_revision(job, source_digest, _FOR_LEARNER)


def _learner_revision(job: CollectorJob, source_digest: str, fields: dict[str, Any]) -> str:
    image = {"image": True} if job.spec.learner and not _first(job.spec.learner.template).get("image") else {}
    written = job.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, include=fields | image
    )
    return digest({"spec": _without_empty(written), "source": source_digest})


def _first(template: Manifest) -> Manifest:
    """Return the first container of a learner's template; empty: the template has none, or is invalid."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    first = containers[0] if isinstance(containers, list) and containers else None
    return first if isinstance(first, dict) else {}


def _without_empty(written: dict[str, Any]) -> dict[str, Any]:
    """Drop empty parts: `weights: {}` and no `weights` mean the same."""
    return {key: value for key, value in written.items() if value not in ({}, [])}
