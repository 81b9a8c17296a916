"""The errors of a job that was made from keywords, in the words of the caller: keywords and Python's values."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rollfleet.arguments import shown
from rollfleet.learner.spec_fields import EVALUATION_FIELDS, SPEC_FIELDS
from rollfleet_api.fields import REFUSAL

_KEYWORDS: Final = {field.path: keyword for keyword, field in SPEC_FIELDS.items()} | {("env", "id"): "env"}
_TYPES: Final = {
    "int_type": "an int",
    "int_from_float": "an int",
    "int_parsing_size": "an int of at most 64 bits",
    "float_type": "a float",
    "bool_type": "True or False",
    "string_type": "a str",
    "tuple_type": "a list or a tuple",
    "model_type": "a dict",
}
_QUOTED: Final = re.compile(r"`([A-Za-z.]+)(?:: ([A-Za-z0-9.]+))?`")
"""A field in a message: `name`, or `name: value`."""


def in_python(error: ValidationError) -> str:
    """Return the errors of a job in one line, by the keywords that set its fields."""
    details = error.errors(include_url=False)
    return "; ".join(dict.fromkeys(text for detail in details for text in _texts(detail)))


def _texts(detail: ErrorDetails) -> Iterator[str]:
    path = tuple(str(part) for part in detail["loc"] if part != "spec")
    if detail["type"] == "extra_forbidden" and path[:1] == ("evaluation",):
        yield f"evaluation: there is no entry {shown(path[-1])}; the entries are {', '.join(EVALUATION_FIELDS)}"
        return
    if detail["type"] != REFUSAL:
        yield f"{_keyword(path)}: {_message(detail, path)}"
        return
    for inner, message in detail["ctx"]["found"]:
        value = detail["input"]
        plain = message.replace(f"got `{value}`", f"got {shown(value)}") if isinstance(value, str) else message
        yield f"{_keyword((*path, *inner.split('.')) if inner else path)}: {_QUOTED.sub(_in_python, plain)}"


def _message(detail: ErrorDetails, path: tuple[str, ...]) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    match kind:
        case "missing":
            return f"missing{_example(path)}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, got {shown(value)}"
        case "greater_than":
            return f"must be more than {context['gt']}, got {shown(value)}"
        case "less_than_equal":
            return f"must be at most {context['le']}, got {shown(value)}"
        case "finite_number":
            return f"must be a finite number, got {shown(value)}"
        case "enum":
            return _choice(value, _field(path))
        case _ if kind in _TYPES:
            return f"expected {_TYPES[kind]}, got {shown(value)}{_hint(kind, value, path)}"
    return f"{detail['msg']}, got {shown(value)}"


def _hint(kind: str, value: object, path: tuple[str, ...]) -> str:
    if value is None:
        return _example(path) or "; remove it for the default"
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    number = kind.startswith(("int", "float")) and isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value)
    return f"; write {value}" if number else ""


def _example(path: tuple[str, ...]) -> str:
    field = _field(path)
    return f"; write e.g. `{_keyword(path)}={field.examples[0]}`" if field and field.examples else ""


def _choice(value: object, field: FieldInfo | None) -> str:
    choices = [str(each.value).lower() for each in _choices(field)]
    near = get_close_matches(value.lower(), choices, n=1, cutoff=0.7) if isinstance(value, str) else []
    if near:
        return f"got {shown(value)}; write {near[0]!r}"
    return f"expected {' or '.join(map(repr, choices))}, got {shown(value)}"


def _choices(field: FieldInfo | None) -> type[StrEnum] | tuple[()]:
    annotation = field.annotation if field else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, StrEnum) else ()


def _field(path: tuple[str, ...]) -> FieldInfo | None:
    known = (*SPEC_FIELDS.values(), *EVALUATION_FIELDS.values())
    return next((each.info for each in known if each.path == path), None)


def _keyword(path: tuple[str, ...]) -> str:
    if path and path[-1].isdigit():
        return f"{_keyword(path[:-1])}[{path[-1]}]"
    return _KEYWORDS.get(path, ".".join(path))


def _in_python(quoted: re.Match[str]) -> str:
    name, value = quoted[1], quoted[2]
    path = tuple(name.removeprefix("spec.").split("."))
    found = [keyword for known, keyword in _KEYWORDS.items() if known[-len(path) :] == path]
    if len(found) != 1:
        return quoted[0]
    if value is None:
        return f"`{found[0]}`"
    return f"`{found[0]}={value.capitalize() if value in ('true', 'false') else repr(value.lower())}`"
