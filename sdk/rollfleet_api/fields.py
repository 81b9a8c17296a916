"""What the models of a job are made of: their common settings, and the types of single fields.

Every type says three things in one place: what Python accepts, what a refusal tells the user, and what the CRD's schema
says.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    JsonValue,
    PlainValidator,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from rollfleet_api import quantity

REFUSAL: Final = "rollfleet"
"""The type of the pydantic errors that carry a message of ours."""

MAX_COUNT: Final = 2**53 - 1
"""The largest count or seed: the largest whole number that every reader of JSON keeps exact."""

MAX_DEPTH: Final = 64
"""How deep a free-form value may nest; a value that holds itself (YAML aliases can) would never end."""


class Model(BaseModel):
    """A part of a job: frozen, strict about types, no unknown fields; camelCase in YAML, snake_case in Python."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        validate_default=False,
        allow_inf_nan=False,
    )


def refusal(*found: tuple[str, str]) -> PydanticCustomError:
    """An error to raise in a validator, for one or several things that are wrong.

    Args:
        *found: Each the path from the validated value in YAML words (empty: the value itself), and the message.
    """
    text = "; ".join(f"{path}: {message}" if path else message for path, message in found)
    return PydanticCustomError(REFUSAL, "{text}", {"text": text, "found": found})


def rule(cel: str, message: str, *, field: str = "", message_cel: str = "") -> dict[str, JsonValue]:
    """A CEL rule for the CRD (an entry of `x-kubernetes-validations`).

    Args:
        cel: What must hold; `self` is the value that the rule is attached to.
        message: What the API server tells where it does not hold.
        field: The field that the error names, from `self`, such as `.collect.framesPerBatch`.
        message_cel: A CEL expression of the message, for numbers in it; `message` is used where it fails.
    """
    written: dict[str, JsonValue] = {"rule": cel, "message": message}
    if message_cel:
        written["messageExpression"] = message_cel
    if field:
        written["fieldPath"] = field
    return written


def child(path: str, part: str | int) -> str:
    """The path of a field or an item, from its parent's: `spec.env`, `wrappers[0]`, `limits[nvidia.com/gpu]`."""
    if isinstance(part, int) or not re.fullmatch(r"[A-Za-z0-9_-]+", part):
        return f"{path}[{part}]"
    return f"{path}.{part}" if path else part


def matches(text: str, pattern: str, max_length: int) -> bool:
    """Whether the text fits, as `matching_text` tells the API server."""
    return len(text) <= max_length and re.fullmatch(pattern, text) is not None


def matching_text(pattern: str, max_length: int, expected: str) -> WithJsonSchema:
    """The CRD's schema of a text: a CEL rule and no `pattern`, because a rule can tell what to write instead."""
    return WithJsonSchema(
        {
            "type": "string",
            "maxLength": max_length,
            "x-kubernetes-validations": [rule(f"self.matches(r'{pattern}')", expected)],
        }
    )


# --- Entrypoints -----------------------------------------------------------------------------------------------------

_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
ENTRYPOINT_PATTERN: Final = rf"^{_IDENTIFIER}(\.{_IDENTIFIER})*:{_IDENTIFIER}(\.{_IDENTIFIER})*$"
MAX_ENTRYPOINT_LENGTH: Final = 512
_EXPECTED_ENTRYPOINT: Final = "expected `module:callable`, e.g. "


def _entrypoint(text: str) -> str:
    if matches(text, ENTRYPOINT_PATTERN, MAX_ENTRYPOINT_LENGTH):
        return text
    hint = "`my_pkg.envs:make`"
    dotted = re.fullmatch(rf"({_IDENTIFIER}(?:\.{_IDENTIFIER})*)\.({_IDENTIFIER})", text)
    if dotted:
        hint = f"`{dotted[1]}:{dotted[2]}`"
    elif text.endswith("()") and re.fullmatch(ENTRYPOINT_PATTERN, text[:-2]):
        hint = f"`{text[:-2]}`"
    raise refusal(("", f"`{text}` is no entrypoint; {_EXPECTED_ENTRYPOINT}{hint}"))


Entrypoint = Annotated[
    str,
    AfterValidator(_entrypoint),
    matching_text(ENTRYPOINT_PATTERN, MAX_ENTRYPOINT_LENGTH, f"{_EXPECTED_ENTRYPOINT}`my_pkg.envs:make`"),
]
"""A `module:callable` that a worker imports."""

# --- Quantities ------------------------------------------------------------------------------------------------------


def _quantity_text(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        raise refusal(("", f'expected a quantity; write it in quotes: "{value:g}"'))
    return value


def _quantity(text: str) -> str:
    try:
        quantity.parse_quantity(text)
    except ValueError as error:
        raise refusal(("", str(error))) from error
    return text


Quantity = Annotated[
    str,
    AfterValidator(_quantity),
    BeforeValidator(_quantity_text),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": quantity.PATTERN,
            "maxLength": quantity.MAX_LENGTH,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""A Kubernetes quantity; a whole number in YAML is taken too, and kept as text."""

# --- Free-form objects -----------------------------------------------------------------------------------------------


def _plain(value: object, path: str, depth: int) -> JsonValue:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise refusal((path, f"{value} cannot be written in JSON; use a finite number"))
        return value
    if depth >= MAX_DEPTH:
        raise refusal((path, f"nested more than {MAX_DEPTH} levels deep, or holding itself"))
    if isinstance(value, list | tuple):
        return [_plain(item, child(path, index), depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return _plain_object(value, path, depth)
    raise refusal(
        (path, f"a {type(value).__name__} cannot be written in JSON; use text, numbers, booleans, lists and mappings")
    )


def _plain_object(value: Mapping[object, object], path: str, depth: int) -> dict[str, JsonValue]:
    plain: dict[str, JsonValue] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise refusal((path, f'the key {key!r} is no text; write it in quotes: "{key}"'))
        plain[key] = _plain(item, child(path, key), depth + 1)
    return plain


def _free_form(value: object) -> dict[str, JsonValue]:
    if not isinstance(value, Mapping):
        raise PydanticCustomError("dict_type", "expected a mapping")
    return _plain_object(value, "", 0)


FreeForm = Annotated[
    dict[str, JsonValue],
    PlainValidator(_free_form),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""An object whose fields are the user's own: whatever JSON can hold. A copy, so that nobody changes it from outside."""
