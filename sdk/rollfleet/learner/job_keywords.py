"""Makes a job of keywords of `rollfleet.Collector`. Defaults and checks are the model's; errors name the keywords."""

from collections.abc import Mapping
from typing import Any, Final

from rollfleet.arguments import shown
from rollfleet.errors import JobInvalid
from rollfleet.learner.keywords import PLACES
from rollfleet_api.job import API_VERSION, KIND, CollectorJob, CollectorJobSpec, EvaluationSpec
from rollfleet_api.spelling import Spelling
from rollfleet_api.validation import JobErrors, checked_job
from rollfleet_api.wording import choices, field_at

_KEYWORDS: Final = {f"spec.{path}": keyword for keyword, path in PLACES.items()} | {"spec.env.id": "env"}


class _Python(Spelling):
    """The spelling of keywords and of Python's values."""

    def path(self, path: str) -> str:
        field, bracket, index = path.partition("[")
        names = field.split(".")
        for end in range(len(names), 0, -1):
            if keyword := _KEYWORDS.get(".".join(names[:end])):
                return ".".join((keyword, *names[end:])) + bracket + index
        return field.removeprefix("spec.") + bracket + index

    def value(self, value: object) -> str:
        return shown(value)

    def pair(self, name: str, value: object) -> str:
        return f"`{name}={value}`"

    def choice(self, value: str) -> str:
        return value.capitalize() if value in ("true", "false") else repr(value.lower())

    def field(self, part: str, name: str, value: str) -> str:
        keyword = _KEYWORDS.get(f"{part}.{name}", name)
        return self.pair(keyword, self.choice(value)) if value else f"`{keyword}`"


def job_of(values: Mapping[str, Any], parts: Mapping[str, Any], metadata: Mapping[str, Any]) -> CollectorJob:
    """Make a job.

    Args:
        values: Values of the keywords of `PLACES`. Names of choices are taken in any case: `sync` is `Sync`.
        parts: More fields of its spec, in the words of YAML.
        metadata: Its name and labels.

    Raises:
        JobInvalid: The model refuses a value. The message names the keyword.
    """
    spec: dict[str, Any] = {}
    for keyword, value in values.items():
        part, _, name = PLACES[keyword].rpartition(".")
        target = spec.setdefault(part, {}) if part else spec
        target[name] = _chosen(value, choices(field_at(CollectorJobSpec, PLACES[keyword])))
    if isinstance(evaluation := spec.get("evaluation"), Mapping) and "exploration" in evaluation:
        how = choices(EvaluationSpec.model_fields["exploration"])
        spec["evaluation"] = {**evaluation, "exploration": _chosen(evaluation["exploration"], how)}
    for name, part in parts.items():
        spec[name] = {**spec.get(name, {}), **part} if isinstance(part, Mapping) else part
    try:
        return checked_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}, _Python())
    except JobErrors as errors:
        raise JobInvalid("; ".join(dict.fromkeys(" ".join(str(each).split()) for each in errors.problems))) from None


def _chosen(value: object, names: list[str]) -> object:
    if isinstance(value, str):
        return next((name for name in names if name.lower() == value.lower()), value)
    return value
