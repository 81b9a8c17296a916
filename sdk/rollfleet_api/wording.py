"""The errors of a model, for people: where, what is wrong, and what to write instead, in the caller's spelling."""

import json
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from enum import Enum
from functools import reduce
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rollfleet_api.fields import BROKEN_RULE, REFUSAL, Model, child
from rollfleet_api.spelling import YAML, Spelling

_EXPECTED: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of at most 64 bits",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def worded(error: ValidationError, model: type[Model], spelling: Spelling = YAML) -> Iterator[tuple[str, str]]:
    """Yield the caller's name of each wrong field, and a message that says what to write."""
    for detail in error.errors(include_url=False):
        location = [part for part in detail["loc"] if part != "[key]"]
        path = reduce(child, location, "")
        if detail["type"] in (REFUSAL, BROKEN_RULE):
            for below, message in detail["ctx"]["found"]:
                separator = "" if not below or not path or below.startswith("[") else "."
                of_rule = detail["type"] == BROKEN_RULE
                place = spelling.path(f"{path}{separator}{below}")
                yield place, spelling.message(message, path) if of_rule else message
        else:
            owner = _model_at(model, location[:-1])
            name = str(location[-1]) if location else ""
            if detail["type"] == "extra_forbidden":
                yield spelling.path(path), _unknown(name, owner, model)
            else:
                yield spelling.path(path), _message(detail, path, _field(owner, name), spelling)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, whatever its case and separators; None: no name is similar.

    Example:
        >>> nearest("time-stack", ["Envs", "TimeStack"])
        'TimeStack'
    """
    plain = {_plain(known): known for known in names}
    near = get_close_matches(_plain(name), plain, n=1, cutoff=0.7)
    return plain[near[0]] if near else None


def field_at(model: type[Model], path: str) -> FieldInfo:
    """Return the field at a path, such as `collect.framesPerBatch`."""
    *outer, name = path.split(".")
    field = _field(_model_at(model, outer), name)
    assert field is not None, path
    return field


def choices(field: FieldInfo | None) -> list[str]:
    """Return the values of a field's enumeration; empty: it has none."""
    for part in _flat(field.annotation if field else None):
        if isinstance(part, type) and issubclass(part, Enum):
            return [str(choice.value) for choice in part]
    return []


def model_of(field: FieldInfo) -> type[Model] | None:
    """Return the model in a field's type; None: it has none."""
    return next((each for each in _flat(field.annotation) if isinstance(each, type) and issubclass(each, Model)), None)


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def _message(detail: ErrorDetails, path: str, field: FieldInfo | None, spelling: Spelling) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    written = spelling.path(path).rpartition(".")[2]
    example = spelling.pair(written, field.examples[0]) if field and field.examples else ""
    got = f"got {spelling.value(value)}"
    match kind:
        case "missing":
            return f"missing; write e.g. {example}" if example else f"missing; write {spelling.pair(written, '...')}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, {got}"
        case "greater_than":
            return f"must be more than {context['gt']}, {got}"
        case "less_than_equal":
            return f"must be at most {context['le']}, {got}"
        case "finite_number":
            return f"must be a finite number, {got}"
        case "too_long":
            return f"must have at most {context['max_length']} items, got {context['actual_length']}"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, got {len(str(value))}"
        case "enum":
            near = nearest(value, choices(field)) if isinstance(value, str) else None
            if near:
                return f"{got}; write {spelling.choice(near)}"
            return f"expected {' or '.join(map(spelling.choice, choices(field)))}, {got}"
        case _ if kind in _EXPECTED:
            hint = _hint(kind, value, field, example, spelling.pair(written, f"[{spelling.value(value)}]"))
            return f"expected {_EXPECTED[kind]}, {got}{hint and '; '}{hint}"
    return f"{detail['msg']}, {got}"


def _hint(kind: str, value: object, field: FieldInfo | None, example: str, as_list: str) -> str:
    if value is None:
        return "remove it for the default" if field and not field.is_required() else "write a value"
    if kind == "string_type" and isinstance(value, int | float):
        return f"write it in quotes: {json.dumps(str(value).lower())}"
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if isinstance(value, str):
        numeric = kind.startswith(("int", "float")) and re.fullmatch(r"-?[0-9]{1,20}(\.[0-9]+)?", value)
        if numeric or (kind == "bool_type" and value in ("true", "false")):
            return f"write {value} without quotes"
    if kind in ("list_type", "tuple_type") and isinstance(value, int | float | str):
        return f"write {as_list}"
    return f"write e.g. {example}" if example else ""


def _unknown(name: str, owner: type[Model] | None, root: type[Model]) -> str:
    if owner and (why := owner.REMOVED.get(to_camel(name))):
        return f"this field is gone: {why}; remove it"
    return f"unknown field `{name}`; {_correction(name, owner, root)}"


def _correction(name: str, owner: type[Model] | None, root: type[Model]) -> str:
    names = [field.alias or known for known, field in owner.model_fields.items()] if owner else []
    if to_camel(name) in names:
        return f"did you mean `{to_camel(name)}`? (fields are written in camelCase)"
    if near := nearest(name, names):
        return f"did you mean `{near}`?"
    homes = [path for path in _homes(root, to_camel(name)) if path.partition(".")[0] in ("spec", "metadata")]
    if len(homes) == 1:
        return f"it belongs to `{homes[0]}`"
    return f"the fields here are {', '.join(names)}" if names else "this part has no fields; remove it"


# --- Looking into the models -----------------------------------------------------------------------------------------


def _field(model: type[Model] | None, name: str) -> FieldInfo | None:
    fields = model.model_fields.items() if model else ()
    return next((field for known, field in fields if name in (known, field.alias)), None)


def _model_at(model: type[Model], location: list[Any]) -> type[Model] | None:
    """Return the model at a location; None inside free-form parts."""
    found: type[Model] | None = model
    for part in location:
        if isinstance(part, str):
            field = _field(found, part)
            found = model_of(field) if field else None
    return found


def _homes(model: type[Model], name: str, path: str = "") -> Iterator[str]:
    """Yield the path of each part below a model that has a field of this name."""
    for field in model.model_fields.values():
        if field.alias == name:
            yield path
        if part := model_of(field):
            yield from _homes(part, name, child(path, str(field.alias)))


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
