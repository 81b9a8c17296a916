"""Revisions of workers and learner: hashes of the fields that they read only at their start.

A changed revision restarts them. It depends only on what the user wrote: a new operator, with another default image or
pod template, restarts no pods. Models list the fields that restart no worker: a new field restarts the workers instead
of being ignored silently.
"""

from functools import lru_cache
from typing import Any, Final

from rollfleet_api.fields import Model
from rollfleet_api.job import CollectorJob, CollectorJobSpec
from rollfleet_api.wording import model_of
from rollfleet_operator.manifest import Manifest, digest
from rollfleet_operator.scheduler import scheduler_labels


def _listed(model: type[Model], names: str) -> dict[str, Any]:
    """Return the fields in a list of a model and its parts, as `model_dump` takes them."""
    found: dict[str, Any] = dict.fromkeys(getattr(model, names), True)
    for name, field in model.model_fields.items():
        if name not in found and (part := model_of(field)) and (below := _listed(part, names)):
            found[name] = below
    return found


_NOT_FOR_WORKERS: Final = _listed(CollectorJobSpec, "KEEPS_WORKERS")
_FOR_LEARNER: Final = _listed(CollectorJobSpec, "RESTARTS_LEARNER")


def workers_revision(job: CollectorJob, source_digest: str = "") -> str:
    """Return the revision of the workers, which changes when they must restart.

    `source_digest` is that of the files in the job's ConfigMap; empty: the job has none.
    """
    return _revision(_Same(job), source_digest, of_workers=True)


def evaluation_revision(job: CollectorJob, source_digest: str = "") -> str:
    """Return the revision of the evaluation workers: they restart with the workers, and when `evaluation` changes."""
    evaluation = job.spec.evaluation
    written = evaluation.model_dump(mode="json", by_alias=True) if evaluation else None
    return digest({"workers": workers_revision(job, source_digest), "evaluation": written})


def learner_revision(job: CollectorJob, source_digest: str = "") -> str:
    """Return the revision of the learner, which changes when it must restart; `source_digest` as above.

    Without workers it knows the names of its environment servers' pods, which have the workers' revision.
    """
    own = _revision(_Same(job), source_digest)
    return own if job.spec.workers else digest({"own": own, "servers": workers_revision(job, source_digest)})


class _Same:
    """A job as the key of a cache: each look asks several times for its revisions."""

    def __init__(self, job: CollectorJob) -> None:
        self.job = job

    def __hash__(self) -> int:
        return id(self.job)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.job is other.job


@lru_cache(maxsize=8)
def _revision(same: _Same, source_digest: str, *, of_workers: bool = False) -> str:
    spec, image = same.job.spec, dict[str, Any]()
    if spec.learner and not _first(spec.learner.template).get("image"):
        image = {"image": True}
    for_learner = {"include": _FOR_LEARNER | image, "exclude": {"env": {"servers"}}}
    chosen: dict[str, Any] = {"exclude": _NOT_FOR_WORKERS} if of_workers else for_learner
    written = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, **chosen)
    labels = scheduler_labels(same.job.metadata.labels)  # a scheduler refuses others for pods that run
    filled = {key: value for key, value in written.items() if value not in ({}, [])}  # `weights: {}` means none
    return digest({"spec": filled, "source": source_digest} | ({"labels": labels} if labels else {}))


def _first(template: Manifest) -> Manifest:
    """Return the first container of a learner's template; empty: the template has none, or is invalid."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    first = containers[0] if isinstance(containers, list) and containers else None
    return first if isinstance(first, dict) else {}
