"""What a job's small messages promise: what arrives is what was sent, or an error that names the field."""

import json
import math
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from rollfleet_api.messages import (
    MAX_MESSAGE_BYTES,
    Answer,
    Call,
    Control,
    Evaluation,
    LearnerStatus,
    MessageInvalid,
    WorkerStatus,
    pack,
    unpack,
)
from rollfleet_api.transfers import BatchMeta, Parameter, Receipt, VersionMeta, Want

numbers = st.floats(allow_nan=False)  # a NaN arrives too, but is not equal to itself
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
errors = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=50)
MESSAGES = (
    Evaluation,
    Control,
    Receipt,
    Want,
    BatchMeta,
    Parameter,
    VersionMeta,
    WorkerStatus,
    LearnerStatus,
    Call,
    Answer,
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a message's type, or of a field's: within its bounds, and for a `Text` all that is kept of it."""
    origin, parts = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{name: values(each) for name, each in hints.items()})  # type: ignore[arg-type]
    if origin is Annotated and parts[0] is float and hasattr(parts[1], "allow_inf_nan"):
        return st.floats(allow_nan=False, allow_infinity=False)
    if origin is Annotated and get_origin(parts[0]) is dict:
        return st.dictionaries(st.text("ab.", max_size=9), values(get_args(parts[0])[1]), max_size=3)
    if origin is Annotated and get_origin(parts[0]) is tuple:
        return st.lists(st.text("ab.", max_size=9), max_size=3).map(tuple)
    if origin is Annotated and parts[0] in (int, float):
        low, high = parts[1].metadata
        return st.integers(low.ge, high.le) if parts[0] is int else st.floats(low.ge, high.le)
    if origin is Annotated:
        return errors
    if origin is tuple and parts[-1] is not ...:
        return st.tuples(*map(values, parts))
    if origin is tuple:
        return st.lists(values(parts[0]), max_size=4).map(tuple)
    if parts:
        return st.one_of(*map(values, parts))
    plain = {float: numbers, str: texts, bool: st.booleans(), type(None): st.none()}
    return plain[hint] if hint in plain else st.sampled_from(hint)


KINDS = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)

CALL = Call(number=7, method="env.seed", arguments="[]")
WEIGHT = Parameter(model="policy", name="weight", dtype="float32", shape=(2, 3))
VERSION = VersionMeta(version=1, parameters=(WEIGHT,))
EXAMPLES: dict[type, Any] = {kind: find(values(kind), lambda _: True) for kind in MESSAGES}
"""The simplest message of each type."""


def as_json(message: Any, **changes: object) -> bytes:
    return json.dumps(asdict(message) | changes).encode()


@KINDS
@given(data=st.data())
def test_any_message_arrives_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    message = data.draw(values(kind))
    assert unpack(kind, pack(message)) == message
    assert unpack(kind, memoryview(pack(message))) == message


@KINDS
def test_unknown_fields_are_ignored(kind: type) -> None:
    message = EXAMPLES[kind]
    assert unpack(kind, as_json(message, later={"nested": [1, "a"]})) == message


def test_unknown_fields_of_a_nested_message_are_ignored() -> None:
    data = asdict(VERSION)
    data["parameters"] = [parameter | {"later": 1} for parameter in data["parameters"]]
    assert unpack(VersionMeta, json.dumps(data).encode()) == VERSION


OPTIONAL = {
    (kind, field.name)
    for kind in EXAMPLES
    for field in fields(kind)
    if field.default is not MISSING or field.default_factory is not MISSING
}
EVERY_FIELD = [(kind, field.name) for kind in MESSAGES for field in fields(kind)]


@pytest.mark.parametrize(("kind", "field"), EVERY_FIELD, ids=lambda part: getattr(part, "__name__", part))
def test_missing_or_mistyped_field_is_named(kind: type, field: str) -> None:
    data = asdict(EXAMPLES[kind])
    with pytest.raises(MessageInvalid, match=rf"^{kind.__name__}: {field}(\.\w+)?: "):
        unpack(kind, json.dumps(data | {field: {"odd": "1"}}).encode())
    del data[field]
    if (kind, field) in OPTIONAL:
        unpack(kind, json.dumps(data).encode())
        return
    with pytest.raises(MessageInvalid, match=rf"^{kind.__name__}: {field}: Field required"):
        unpack(kind, json.dumps(data).encode())


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (CALL, "process", -1),
        (CALL, "process", 2**16),
        (CALL, "number", "7"),
        (CALL, "number", 7.0),
        (CALL, "number", True),
        (CALL, "number", 2**63),
        (CALL, "number", 10**400),
        (CALL, "method", 1),
        (VERSION, "version", 0),
        (EXAMPLES[Control], "phase", "run"),
        (EXAMPLES[Control], "random_actions", 1),
        (EXAMPLES[WorkerStatus], "worker", 2**16),
        (EXAMPLES[WorkerStatus], "state", "Sleeping"),
        (EXAMPLES[WorkerStatus], "time_s", math.nan),
        (EXAMPLES[WorkerStatus], "time_s", math.inf),
        (EXAMPLES[WorkerStatus], "waited_for_space_s", -5.0),
        (EXAMPLES[WorkerStatus], "waited_for_space_s", 1e300),
        (EXAMPLES[LearnerStatus], "mean_return", "1"),
    ],
    ids=lambda value: "" if hasattr(value, "__slots__") else str(value)[:20],
)
def test_value_out_of_range_or_of_another_type_is_named(message: Any, field: str, value: object) -> None:
    with pytest.raises(MessageInvalid, match=rf"^{type(message).__name__}: {field}: "):
        unpack(type(message), as_json(message, **{field: value}))


def test_nested_field_is_named_with_its_path() -> None:
    data = as_json(VERSION).replace(b"[2, 3]", b"[2, -3]")
    with pytest.raises(MessageInvalid, match=r"^VersionMeta: parameters\.0\.shape\.1: .* greater than or equal to 0"):
        unpack(VersionMeta, data)


@KINDS
@given(data=st.binary(max_size=60) | st.sampled_from([b"[]", b"null", b"1", b'"a"', b"[" * 500, b"{" * 500]))
def test_bytes_that_are_no_message_are_invalid(kind: type, data: bytes) -> None:
    with pytest.raises(MessageInvalid, match=kind.__name__):
        unpack(kind, data)


def test_message_over_a_mebibyte_is_refused_before_it_is_read() -> None:
    longest = pack(Call(number=0, method="a", arguments="a" * (MAX_MESSAGE_BYTES - 100)))
    unpack(Call, longest)
    with pytest.raises(MessageInvalid, match=f"Call of {MAX_MESSAGE_BYTES + 1} bytes exceeds {MAX_MESSAGE_BYTES}"):
        unpack(Call, longest.ljust(MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_mean_return_of_a_diverged_policy_arrives(value: float) -> None:
    got = unpack(LearnerStatus, pack(replace(EXAMPLES[LearnerStatus], mean_return=value))).mean_return
    assert got == value or (got is not None and math.isnan(got) and math.isnan(value))


def test_error_that_names_an_odd_file_arrives_readable() -> None:
    status = replace(EXAMPLES[WorkerStatus], error="no file caf\udce9.xml, nor \N{SNOWMAN}")
    assert unpack(WorkerStatus, pack(status)).error == "no file caf?.xml, nor \N{SNOWMAN}"


def test_errors_of_workers_hold_nothing_that_a_terminal_obeys() -> None:
    odd = "a\x1b]0;title\x07\x9b2J\r\tb\n"
    for kind in (WorkerStatus, Answer):
        arrived: Any = unpack(kind, pack(replace(EXAMPLES[kind], error=odd)))
        assert arrived.error == "a]0;title2J\tb\n"
