"""The keywords of `rollfleet.Collector` that are fields of a job. Defaults and checks are the model's."""

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from rollfleet.arguments import shown
from rollfleet.errors import JobInvalid
from rollfleet_api.job import CollectorJob, CollectorJobSpec, CollectSpec, EvaluationSpec
from rollfleet_api.wording import Spelling, choices, field_at, worded

PLACES: Final = {name: f"collect.{name}" for name in CollectSpec.model_fields} | {
    "workers": "workers",
    "mode": "mode",
    "num_envs": "env.num_envs",
    "vectorization": "env.vectorization",
    "backend": "env.backend",
    "env_processes": "env.processes",
    "weights_interval": "weights.interval",
    "max_lag": "weights.max_lag",
    "stragglers_threshold": "stragglers.threshold",
    "suspect_after_s": "failure.suspect_after_seconds",
    "max_batches_ahead": "delivery.max_batches_ahead",
    "evaluation": "evaluation",
}
"""The field of a job's spec that each keyword sets. Only Python can express the value of a keyword that is missing."""

NO_LIMIT: Final = ("total_frames", "init_random_frames", "max_frames_per_traj", "trajs_per_batch", "weights_interval")
"""Keywords whose 0 means "none" or "no limit". None and -1 mean the same."""

_KEYWORDS: Final = {path: keyword for keyword, path in PLACES.items()} | {"env.id": "env"}
_QUOTED: Final = re.compile(r"`([A-Za-z.]+)(?:: ([A-Za-z0-9.]+))?`")
"""A field in a message: `name`, or `name: value`."""


class _Python(Spelling):
    """The spelling of keywords and of Python's values."""

    def path(self, path: str) -> str:
        path = to_snake(path.removeprefix("spec."))
        name, bracket, index = path.partition("[")
        return _KEYWORDS.get(name, name) + bracket + index

    def value(self, value: object) -> str:
        return shown(value)

    def pair(self, name: str, value: object) -> str:
        return f"`{name}={value}`"

    def choice(self, value: str) -> str:
        return repr(value.lower())

    def message(self, message: str) -> str:
        return _QUOTED.sub(self._quoted, message)

    def _quoted(self, found: re.Match[str]) -> str:
        field, value = to_snake(found[1]), found[2]
        keywords = [keyword for path, keyword in _KEYWORDS.items() if f".{path}".endswith(f".{field}")]
        if len(keywords) != 1:
            return found[0]
        if value is None:
            return f"`{keywords[0]}`"
        return self.pair(keywords[0], value.capitalize() if value in ("true", "false") else self.choice(value))


def job_of(values: Mapping[str, Any], env: Mapping[str, Any], policy: Mapping[str, Any]) -> CollectorJob:
    """Make a job.

    Args:
        values: Values of the keywords of `PLACES`. Names of choices are taken in any case: `sync` is `Sync`.
        env: More fields of its `env`.
        policy: Its `policy`.

    Raises:
        JobInvalid: The model refuses a value. The message names the keyword.
    """
    spec: dict[str, Any] = {"env": dict(env), "policy": policy}
    for keyword, value in values.items():
        part, _, name = PLACES[keyword].rpartition(".")
        target = spec.setdefault(part, {}) if part else spec
        target[name] = _chosen(value, choices(field_at(CollectorJobSpec, PLACES[keyword])))
    if isinstance(evaluation := spec.get("evaluation"), Mapping) and "exploration" in evaluation:
        how = choices(EvaluationSpec.model_fields["exploration"])
        spec["evaluation"] = {**evaluation, "exploration": _chosen(evaluation["exploration"], how)}
    try:
        data = {"metadata": {"name": "collector"}, "spec": spec}
        job = CollectorJob.model_validate(data, by_alias=False, by_name=True)
        if job.spec.uneven:
            raise JobInvalid(f"frames_per_batch: {_Python().message(job.spec.uneven)}")
        return job
    except ValidationError as error:
        lines = (" ".join(": ".join(each).split()) for each in worded(error, CollectorJob, _Python()))
        raise JobInvalid("; ".join(dict.fromkeys(lines))) from None


def _chosen(value: object, names: list[str]) -> object:
    if isinstance(value, str):
        return next((name for name in names if name.lower() == value.lower()), value)
    return value
