"""The errors of a job, for people: where, what is wrong, and what to write instead."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rollfleet_api.fields import REFUSAL, Model, child
from rollfleet_api.job import API_VERSION, KIND, CollectorJob, CollectorJobSpec, frames_problem

MAX_SPEC_BYTES: Final = 1 << 16
"""The most bytes of a job's spec as JSON. The operator copies and compares it at each look; files belong elsewhere."""

MAX_QUOTED: Final = 60
"""The most characters of a wrong text in a message."""

_UNKNOWN: Final = "unknown field"

_EXPECTED: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of at most 64 bits",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a job.

    Attributes:
        path: The field in YAML words, such as `spec.collect.framesPerBatch`; empty: the whole document.
        message: The error, and what to write instead.
        where: The file, and the line if known; empty: unknown.
    """

    path: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        """Return the problem as one line."""
        return ": ".join(part for part in (self.where, self.path, self.message) if part)


class JobErrors(ValueError):
    """One or several errors in a job, or in a file of jobs.

    Attributes:
        problems: All of them, in the order of the document.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Combine problems; the text has one line for each."""
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Oversized(dict[str, Any]):
    """A spec of more than `MAX_SPEC_BYTES`: empty, with its size.

    Attributes:
        nbytes: Its size as JSON.
    """

    def __init__(self, nbytes: int) -> None:
        """Keep the size."""
        super().__init__()
        self.nbytes = nbytes


def bounded(spec: Any) -> Any:
    """Return a spec, or an `Oversized` in its place, which `parse_job` refuses as it refuses the spec."""
    if isinstance(spec, Oversized):
        return spec
    try:
        nbytes = len(json.dumps(spec, separators=(",", ":")))
    except (RecursionError, TypeError, ValueError):  # not JSON: the models say what is wrong
        return spec
    return spec if nbytes <= MAX_SPEC_BYTES else Oversized(nbytes)


def parse_job(data: object, *, origin: str = "") -> CollectorJob:
    """Parse a job from plain data (of YAML or JSON).

    Args:
        data: The output of a YAML or JSON parser: mappings, lists, text, numbers. Fields have their YAML names.
        origin: The source of the data, for messages.

    Raises:
        JobErrors: With all errors.

    Example:
        >>> parse_job({"kind": "CollectorJob"})
        Traceback (most recent call last):
        rollfleet_api.validation.JobErrors: apiVersion: missing; write `apiVersion: rollfleet.dev/v1alpha1`
    """
    found = list(_kind_problems(data))
    if not found:
        try:
            return CollectorJob.model_validate(data, by_alias=True, by_name=False)
        except ValidationError as error:
            found = explain(error, CollectorJob)
            found += (problem for problem in _frames_problems(data) if problem not in found)
    raise JobErrors(replace(problem, where=origin) for problem in found)


def explain(error: ValidationError, model: type[Model], *, path: str = "") -> list[Problem]:
    """Translate pydantic's errors.

    Args:
        error: The error of validating `model`.
        model: The model that was validated.
        path: The path of the validated value in the document.
    """
    return [problem for detail in error.errors(include_url=False) for problem in _problems(detail, model, path)]


def _kind_problems(data: object) -> Iterator[Problem]:
    """Yield what shows that the data is not a job at all; errors of its fields would be noise."""
    if not isinstance(data, Mapping):
        yield Problem("", f"expected a mapping with apiVersion, kind, metadata and spec, got {_describe(data)}")
        return
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if field not in data:
            yield Problem(field, f"missing; write `{field}: {expected}`")
        elif data[field] != expected:
            yield Problem(field, f"expected `{expected}`, got {_describe(data[field])}; write `{field}: {expected}`")
    if isinstance(spec := bounded(data.get("spec")), Oversized):
        yield Problem(
            "spec",
            f"has {spec.nbytes:,} bytes as JSON, and at most {MAX_SPEC_BYTES:,} are allowed; put code and data into "
            "the ConfigMap of `source`, into the image, or into a volume",
        )


def _frames_problems(data: object) -> Iterator[Problem]:
    """Check `framesPerBatch` against `numEnvs` even if errors elsewhere kept the models from it."""
    spec = data.get("spec") if isinstance(data, Mapping) else None
    env, collect = (spec.get("env"), spec.get("collect")) if isinstance(spec, Mapping) else (None, None)
    if isinstance(env, Mapping) and isinstance(collect, Mapping):
        envs, frames = env.get("numEnvs", 1), collect.get("framesPerBatch")
        if type(envs) is int and type(frames) is int and envs >= 1 and frames >= 1:
            wrong = frames_problem(frames, envs)
            if wrong:
                yield Problem(f"spec.{wrong[0]}", wrong[1])


def _problems(detail: ErrorDetails, model: type[Model], prefix: str) -> Iterator[Problem]:
    location = [part for part in detail["loc"] if part != "[key]"]
    path = prefix
    for part in location:
        path = child(path, part)
    if detail["type"] == REFUSAL:
        for below, message in detail["ctx"]["found"]:
            separator = "" if not below or not path or below.startswith("[") else "."
            yield Problem(f"{path}{separator}{below}", message)
        return
    owner = _model_at(model, location[:-1])
    name = str(location[-1]) if location else ""
    field = _field(owner, name)
    yield Problem(path, _message(detail, name, owner, field))


def _message(detail: ErrorDetails, name: str, owner: type[Model] | None, field: FieldInfo | None) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    example = str(field.examples[0]) if field and field.examples else ""
    match kind:
        case "extra_forbidden":
            return f"{_UNKNOWN} `{name}`; {_unknown(name, owner)}"
        case "missing":
            return f"missing; write e.g. `{name}: {example}`" if example else f"missing; write `{name}: ...`"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, got {value}"
        case "greater_than":
            return f"must be more than {context['gt']}, got {value}"
        case "less_than_equal":
            return f"must be at most {context['le']}, got {value}"
        case "finite_number":
            return f"must be a finite number, got {value}"
        case "too_long":
            return f"must have at most {context['max_length']} items, got {context['actual_length']}"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, got {len(str(value))}"
        case "enum":
            return _wrong_choice(value, _choices(field))
        case _ if kind in _EXPECTED:
            hint = _type_hint(kind, value, name, example, field)
            return f"expected {_EXPECTED[kind]}, got {_describe(value)}" + (f"; {hint}" if hint else "")
    return detail["msg"]


def _describe(value: object) -> str:
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            shown = value if len(value) <= MAX_QUOTED else f"{value[: MAX_QUOTED - 1]}…"
            return f'the text "{shown}"'
        case list() | tuple():
            return "a list"
        case Mapping():
            return "a mapping"
    return f"a {type(value).__name__}"


def _type_hint(kind: str, value: object, name: str, example: str, field: FieldInfo | None) -> str:
    if value is None:
        return "remove it for the default" if field and not field.is_required() else f"write a value after `{name}:`"
    if kind == "string_type" and not isinstance(value, list | Mapping):
        written = str(value).lower() if isinstance(value, bool) else str(value)
        return f'write it in quotes: "{written}"'
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if isinstance(value, str):
        numeric = kind.startswith(("int", "float")) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value)
        if numeric or (kind == "bool_type" and value in ("true", "false")):
            return f"write {value} without quotes"
    if kind == "list_type" and not isinstance(value, Mapping):
        return f"write `{name}: [{value}]`"
    return f"write e.g. `{name}: {example}`" if example else ""


def _wrong_choice(value: object, choices: list[str]) -> str:
    if isinstance(value, str):
        plain = {choice.lower(): choice for choice in choices}
        spelled = re.sub(r"[-_ ]", "", value).lower()
        near = difflib.get_close_matches(spelled, plain, n=1, cutoff=0.7)
        if near:
            return f"got `{value}`; write `{plain[near[0]]}`"
    return f"expected {' or '.join(f'`{choice}`' for choice in choices)}, got {_describe(value)}"


def _unknown(name: str, owner: type[Model] | None) -> str:
    names = _names(owner)
    if to_camel(name) in names:
        return f"did you mean `{to_camel(name)}`? (fields are written in camelCase)"
    plain = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.replace("_", "").lower(), plain, n=1, cutoff=0.7)
    if near:
        return f"did you mean `{plain[near[0]]}`?"
    homes = [path for path, known in _fields(CollectorJobSpec, "spec") if known == to_camel(name)]
    if len(homes) == 1:
        return f"it belongs to `{homes[0]}`"
    return f"the fields here are {', '.join(names)}" if names else "this part has no fields; remove it"


# --- Looking into the models -----------------------------------------------------------------------------------------


def _names(model: type[Model] | None) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def _field(model: type[Model] | None, alias: str) -> FieldInfo | None:
    fields = model.model_fields.values() if model else ()
    return next((field for field in fields if field.alias == alias), None)


def _fields(model: type[Model], path: str) -> Iterator[tuple[str, str]]:
    """Yield each field below a model: the path of its model, and its name."""
    for field in model.model_fields.values():
        name = str(field.alias)
        yield path, name
        part = _model_of(field.annotation)
        if part:
            yield from _fields(part, child(path, name))


def _model_at(model: type[Model], location: list[int | str]) -> type[Model] | None:
    """Return the model at a location; None inside free-form parts."""
    found: type[Model] | None = model
    for part in location:
        if isinstance(part, str):
            field = _field(found, part)
            found = _model_of(field.annotation) if field else None
    return found


def _model_of(annotation: object) -> type[Model] | None:
    for part in _flat(annotation):
        if isinstance(part, type) and issubclass(part, Model):
            return part
    return None


def _choices(field: FieldInfo | None) -> list[str]:
    for part in _flat(field.annotation if field else None):
        if isinstance(part, type) and issubclass(part, Enum):
            return [str(choice.value) for choice in part]
    return []


def _flat(annotation: object) -> Iterator[object]:
    """Yield the classes in an annotation: of `list[Annotated[A, ...]] | None` they are `A` and NoneType."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _flat(get_args(annotation)[0])
    elif origin in (list, Union, UnionType):
        for argument in get_args(annotation):
            yield from _flat(argument)
    else:
        yield annotation
