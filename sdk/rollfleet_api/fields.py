"""Building blocks of a job's models: their common settings, the types of single fields, rules between fields.

Each type and each rule has one definition: what Python accepts, the error text, and the CRD's schema follow from it.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from rollfleet_api import quantity
from rollfleet_api.spelling import YAML
from rollfleet_api.text import clipped

REFUSAL: Final = "rollfleet"
"""The type of the pydantic errors that carry Rollfleet's own messages."""

BROKEN_RULE: Final = "rollfleet_rule"
"""The type of those whose messages are of a `Rule`: `Spelling.message` names the fields in them."""

MAX_COUNT: Final = 2**53 - 1
"""The largest count or seed: the largest whole number that every JSON reader keeps exact."""

MAX_DEPTH: Final = 64
"""The deepest nesting of a free-form value. A value that contains itself (YAML aliases can) would never end."""


def refusal(*found: tuple[str, str], kind: str = REFUSAL) -> PydanticCustomError:
    """Make the error that a validator raises.

    Args:
        *found: Pairs of a path and a message. The path starts at the validated value, in YAML words; empty: the value.
        kind: `BROKEN_RULE` if the messages are of rules.
    """
    text = "; ".join(f"{path}: {message}" if path else message for path, message in found)
    shown = YAML.message(text) if kind == BROKEN_RULE else text
    return PydanticCustomError(kind, "{text}", {"text": shown, "found": found})


def child(path: str, part: str | int) -> str:
    """Extend a path by a field or an item: `spec.env`, `wrappers[0]`, `limits[nvidia.com/gpu]`."""
    if isinstance(part, int) or not re.fullmatch(r"[A-Za-z0-9_-]+", part):
        return f"{path}[{part}]"
    return f"{path}.{part}" if path else part


def _number(value: object) -> object:
    """Return a number of another library, such as NumPy's, as Python's, also in a list; any other value as it is."""
    if isinstance(value, list):
        return [_number(item) for item in value]
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


# --- Models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule between the fields of a model. Python and the API server both check it.

    Attributes:
        cel: The rule in CEL; `self` is the model.
        message: What is wrong when the rule does not hold, and what to write instead. `{field}` and `{field:Value}` are
            fields of the model, by their paths in YAML words: callers of Python have other names for them.
        holds: The same rule in Python, on the model; None: only the API server can check it, or a validator does.
        field: The path of the field to blame, from the model, in YAML words; empty: the model.
        message_cel: A CEL expression for a message with numbers; `message` is its fallback.
        words: Returns that message in Python.

    Example:
        >>> rule = Rule(cel="self.low <= self.high", message="must not exceed {high}", holds=lambda m: m.low <= m.high)
        >>> rule.schema()["message"]
        'must not exceed `high`'
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None = None
    field: str = ""
    message_cel: str = ""
    words: Callable[[Any], str] | None = None

    def schema(self) -> dict[str, JsonValue]:
        """Return the rule as an entry of the CRD's `x-kubernetes-validations`."""
        written: dict[str, JsonValue] = {"rule": self.cel, "message": YAML.message(self.message)}
        if self.message_cel:
            written["messageExpression"] = self.message_cel
        if self.field:
            written["fieldPath"] = f".{self.field}"
        return written


def _add_rules(schema: dict[str, Any], model: type["Model"]) -> None:
    if model.RULES:
        schema["x-kubernetes-validations"] = [rule.schema() for rule in model.RULES]


class Model(BaseModel):
    """A part of a job: frozen, strictly typed, without unknown fields; camelCase in YAML, snake_case in Python.

    Attributes:
        RULES: The rules between the model's fields.
        REMOVED: The fields of earlier versions, in YAML words: why each is gone. The CRD lacks them.
        KEEPS_WORKERS: The fields whose change restarts no worker: workers read all others at their start.
        RESTARTS_LEARNER: The fields whose change restarts a job's own learner: it reads these at its start.

    Example:
        >>> class Range(Model):
        ...     RULES = (Rule(cel="self.low <= self.high", message="...", holds=lambda m: m.low <= m.high),)
        ...     low: int = 0
        ...     high: int = 0
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        allow_inf_nan=False,
        json_schema_extra=_add_rules,
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()
    REMOVED: ClassVar[Mapping[str, str]] = {}
    KEEPS_WORKERS: ClassVar[tuple[str, ...]] = ()
    RESTARTS_LEARNER: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _take_numbers(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        return {name: _number(value) for name, value in data.items()}

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = [rule for rule in self.RULES if rule.holds is not None and not rule.holds(self)]
        if broken:
            found = ((rule.field, rule.words(self) if rule.words else rule.message) for rule in broken)
            raise refusal(*found, kind=BROKEN_RULE)
        return self


# --- Texts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matching:
    r"""An annotation: the text must match a regular expression, in Python as in the CRD.

    The CRD gets a CEL rule rather than a `pattern`, because a rule can say what to write instead.

    Attributes:
        pattern: The regular expression for the whole text, as Python and Go read it.
        max_length: The most characters.
        expected: The error text: `expected ...`.
        suggest: Returns a correction of a wrong text, or an empty text.

    Example:
        >>> Image = Annotated[str, Matching(r"^[^\s]+$", 1024, "expected an image name, e.g. `my-org/my-worker:1.0`")]
    """

    pattern: str
    max_length: int
    expected: str
    suggest: Callable[[str], str] | None = None

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the text after pydantic's own checks."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema for the CRD."""
        rule = Rule(cel=f"self.matches(r'{self.pattern}')", message=self.expected)
        return {"type": "string", "maxLength": self.max_length, "x-kubernetes-validations": [rule.schema()]}

    def _check(self, text: str) -> str:
        if len(text) <= self.max_length and re.fullmatch(self.pattern, text):
            return text
        suggestion = self.suggest(text) if self.suggest else ""
        hint = f"; write `{suggestion}`" if suggestion else ""
        raise refusal(("", f"{self.expected}, got `{clipped(text)}`{hint}"))


_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_ENTRYPOINT = rf"^{_IDENTIFIER}(\.{_IDENTIFIER})*:{_IDENTIFIER}(\.{_IDENTIFIER})*$"


def _suggest_entrypoint(text: str) -> str:
    if dotted := re.fullmatch(rf"({_IDENTIFIER}(?:\.{_IDENTIFIER})*)\.({_IDENTIFIER})", text):
        return f"{dotted[1]}:{dotted[2]}"
    return text[:-2] if text.endswith("()") and re.fullmatch(_ENTRYPOINT, text[:-2]) else ""


Entrypoint = Annotated[
    str, Matching(_ENTRYPOINT, 512, "expected `module:callable`, e.g. `my_pkg.envs:make`", _suggest_entrypoint)
]
"""A `module:callable` that a worker imports."""

Device = Annotated[
    str, Matching(r"^(cpu|mps|cuda(:[0-9]{1,3})?)$", 16, "expected `cpu`, `cuda`, `cuda:<index>` or `mps`")
]
"""The name of a torch device."""

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
"""A Kubernetes quantity. A whole number in YAML is accepted too, and kept as text."""

# --- Free-form objects -----------------------------------------------------------------------------------------------


def _plain(value: object, path: str, depth: int) -> JsonValue:
    value = _number(value) if isinstance(value, Real) else value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise refusal((path, f"{value} cannot be written in JSON; use a finite number"))
        return value
    if depth >= MAX_DEPTH:
        raise refusal((path, f"nested more than {MAX_DEPTH} levels deep, or contains itself"))
    if isinstance(value, list | tuple):
        return [_plain(item, child(path, index), depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return _plain_object(value, path, depth)
    wanted = "use text, numbers, booleans, lists and mappings"
    raise refusal((path, f"a {type(value).__name__} cannot be written in JSON; {wanted}"))


def _plain_object(value: Mapping[object, object], path: str, depth: int) -> dict[str, JsonValue]:
    plain: dict[str, JsonValue] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise refusal((path, f'the key {key!r} is not text; write it in quotes: "{key}"'))
        plain[key] = _plain(item, child(path, key), depth + 1)
    return plain


def _free_form(value: object) -> dict[str, JsonValue]:
    if not isinstance(value, Mapping):
        raise PydanticCustomError("dict_type", "expected a mapping")
    return _plain_object(value, "", 0)


FreeForm = Annotated[
    dict[str, Any],  # JsonValue, whose serializer asks Python for the type of each item
    PlainValidator(_free_form),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""An object with the user's own fields: any JSON. It is a deep copy of the input."""
