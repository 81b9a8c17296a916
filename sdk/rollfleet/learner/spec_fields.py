"""Which field of a job each keyword of `rollfleet.Collector` sets. Defaults and checks are the model's."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rollfleet_api.job import CollectorJobSpec, CollectSpec, EvaluationSpec

# Every field of `collect` is a keyword of the same name. These are the keywords of other parts.
_OTHER_PARTS: Final = {
    "workers": ("workers",),
    "mode": ("mode",),
    "num_envs": ("env", "num_envs"),
    "vectorization": ("env", "vectorization"),
    "backend": ("env", "backend"),
    "env_processes": ("env", "processes"),
    "weights_interval": ("weights", "interval"),
    "max_lag": ("weights", "max_lag"),
    "precision": ("weights", "precision"),
    "stragglers_threshold": ("stragglers", "threshold"),
    "suspect_after_s": ("failure", "suspect_after_seconds"),
    "max_batches_ahead": ("delivery", "max_batches_ahead"),
    "evaluation": ("evaluation",),
}


NO_LIMIT: Final = frozenset(
    ("total_frames", "init_random_frames", "max_frames_per_traj", "trajs_per_batch", "weights_interval")
)
"""Keywords for which 0 means "none" or "no limit". None and TorchRL's -1 mean the same."""


@dataclass(frozen=True, slots=True)
class SpecField:
    """The field of a job that a keyword sets.

    Attributes:
        path: Its place in the job's YAML, from `spec`: `("collect", "framesPerBatch")`.
        info: Its default, checks and description.
        no_limit: Whether -1 means 0.
    """

    path: tuple[str, ...]
    info: FieldInfo
    no_limit: bool = False

    def put(self, spec: dict[str, Any], value: object) -> None:
        """Write a value into the plain data of a spec. Names of choices are taken in any case: `sync` is `Sync`."""
        *outer, last = self.path
        for name in outer:
            spec = spec.setdefault(name, {})
        spec[last] = 0 if self.no_limit and type(value) is int and value == -1 else self._choice(value)

    def _choice(self, value: object) -> object:
        if isinstance(value, Mapping):
            entries = EVALUATION_FIELDS
            return {name: entries[name]._choice(each) if name in entries else each for name, each in value.items()}
        choices = self.info.annotation
        if isinstance(value, str) and isinstance(choices, type) and issubclass(choices, StrEnum):
            return next((each.value for each in choices if each.value.lower() == value.lower()), value)
        return value


def _field(keyword: str, names: tuple[str, ...]) -> SpecField:
    model: type[BaseModel] = CollectorJobSpec
    path: list[str] = []
    for name in names[:-1]:
        info = model.model_fields[name]
        assert isinstance(info.annotation, type)
        assert issubclass(info.annotation, BaseModel)
        path.append(info.alias or name)
        model = info.annotation
    info = model.model_fields[names[-1]]
    return SpecField((*path, info.alias or names[-1]), info, keyword in NO_LIMIT)


SPEC_FIELDS: Final[Mapping[str, SpecField]] = {
    keyword: _field(keyword, names)
    for keyword, names in ({name: ("collect", name) for name in CollectSpec.model_fields} | _OTHER_PARTS).items()
}
"""The field that each keyword sets. A keyword that is missing here has no field: only Python can express its value."""

EVALUATION_FIELDS: Final[Mapping[str, SpecField]] = {
    name: SpecField(("evaluation", name), info) for name, info in EvaluationSpec.model_fields.items()
}
"""The field that each entry of the keyword `evaluation`, a mapping, sets."""
