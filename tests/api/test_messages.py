"""What a job's small messages promise: what arrives is what was sent, or an error that names the field."""

import json
import math
from dataclasses import MISSING, asdict, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollfleet_api.messages import (
    MAX_MESSAGE_BYTES,
    Answer,
    BatchMeta,
    Call,
    Control,
    Evaluation,
    LearnerPhase,
    LearnerStatus,
    Lease,
    Manifest,
    MessageInvalid,
    Parameter,
    RankStatus,
    WorkerState,
    WorkerStatus,
    pack,
    unpack,
)

counts = st.integers(0, 2**63 - 1)
indices = st.integers(0, 2**16 - 1)
numbers = st.floats(allow_nan=False)  # a NaN arrives too, but is not equal to itself
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
errors = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=50)
parameters = st.builds(Parameter, model=texts, name=texts, dtype=texts, shape=st.lists(counts, max_size=5).map(tuple))
evaluations = st.builds(
    Evaluation,
    version=counts,
    episodes=counts,
    mean_return=numbers,
    min_return=numbers,
    max_return=numbers,
    std_return=numbers,
    mean_length=numbers,
    time_s=numbers,
)
MESSAGES: dict[type, st.SearchStrategy[Any]] = {
    Evaluation: evaluations,
    Control: st.builds(
        Control,
        session=counts,
        phase=st.sampled_from(LearnerPhase),
        round=counts,
        version=counts,
        random_actions=st.booleans(),
        call=st.none()
        | st.builds(Call, number=counts, workers=st.lists(indices).map(tuple), method=texts, arguments=texts),
    ),
    Lease: st.builds(Lease, incarnation=st.integers(0, 2**15 - 1), host=texts, pid=counts),
    BatchMeta: st.builds(BatchMeta, session=counts, round=counts, version=counts, frames=counts),
    Parameter: parameters,
    Manifest: st.builds(
        Manifest,
        session=counts,
        version=st.integers(1, 2**63 - 1),
        parameters=st.lists(parameters, max_size=4).map(tuple),
        total_bytes=counts,
        chunk_bytes=st.integers(1, 1 << 26),
        checksum=texts,
    ),
    WorkerStatus: st.builds(
        WorkerStatus,
        worker=indices,
        incarnation=counts,
        answer=st.none() | st.builds(Answer, number=counts, result=texts, error=st.none() | errors),
        state=st.sampled_from(WorkerState),
        version=counts,
        frames=counts,
        batches=counts,
        frames_per_second=numbers,
        mean_return=st.none() | numbers,
        error=st.none() | errors,
        fatal=st.booleans(),
        time_s=numbers,
    ),
    LearnerStatus: st.builds(
        LearnerStatus,
        session=counts,
        version=counts,
        applied_version=counts,
        frames=counts,
        batches=counts,
        dropped=counts,
        mean_return=st.none() | numbers,
        lag=counts,
        evaluation=st.none() | evaluations,
        time_s=numbers,
    ),
    RankStatus: st.builds(
        RankStatus,
        rank=st.integers(0, 2**16 - 1),
        ranks=st.integers(1, 2**16),
        process=texts,
        session=counts,
        round=counts,
        frames=counts,
        batches=counts,
        dropped=counts,
        restored=counts,
        left=st.booleans(),
    ),
}
KINDS = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)

LEASE = Lease(incarnation=3, host="a", pid=7)
MANIFEST = Manifest(
    session=1,
    version=1,
    parameters=(Parameter(model="policy", name="weight", dtype="float32", shape=(2, 3)),),
    total_bytes=32,
    chunk_bytes=16,
    checksum="00",
)
LEARNER = LearnerStatus(session=1, version=1, applied_version=1, frames=1, batches=1, mean_return=1.0)
EXAMPLES: dict[type, Any] = {
    Evaluation: Evaluation(
        version=1,
        episodes=2,
        mean_return=1.0,
        min_return=0.0,
        max_return=2.0,
        std_return=1.0,
        mean_length=3.0,
        time_s=0.0,
    ),
    Control: Control(session=1, phase=LearnerPhase.RUN, round=1, version=1),
    Lease: LEASE,
    BatchMeta: BatchMeta(session=1, round=1, version=1, frames=1),
    Parameter: MANIFEST.parameters[0],
    Manifest: MANIFEST,
    WorkerStatus: WorkerStatus(
        worker=1, incarnation=1, state=WorkerState.COLLECTING, version=1, frames=1, batches=1, frames_per_second=1.0
    ),
    LearnerStatus: LEARNER,
    RankStatus: RankStatus(rank=1, ranks=2, process="a"),
}


def as_json(message: Any, **changes: object) -> bytes:
    return json.dumps(asdict(message) | changes).encode()


@KINDS
@given(data=st.data())
def test_any_message_arrives_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    assert unpack(kind, pack(message)) == message
    assert unpack(kind, memoryview(pack(message))) == message


@KINDS
def test_unknown_fields_are_ignored(kind: type) -> None:
    message = EXAMPLES[kind]
    assert unpack(kind, as_json(message, later={"nested": [1, "a"]})) == message


def test_unknown_fields_of_a_nested_message_are_ignored() -> None:
    data = asdict(MANIFEST)
    data["parameters"] = [parameter | {"later": 1} for parameter in data["parameters"]]
    assert unpack(Manifest, json.dumps(data).encode()) == MANIFEST


OPTIONAL = {(kind, field.name) for kind in EXAMPLES for field in fields(kind) if field.default is not MISSING}
EVERY_FIELD = [(kind, field.name) for kind in MESSAGES for field in fields(kind)]


@pytest.mark.parametrize(("kind", "field"), EVERY_FIELD, ids=lambda part: getattr(part, "__name__", part))
def test_missing_or_mistyped_field_is_named(kind: type, field: str) -> None:
    data = asdict(EXAMPLES[kind])
    with pytest.raises(MessageInvalid, match=rf"^{kind.__name__}: {field}(\.number|\.version)?: "):
        unpack(kind, json.dumps(data | {field: {"odd": 1}}).encode())
    del data[field]
    if (kind, field) in OPTIONAL:
        unpack(kind, json.dumps(data).encode())
        return
    with pytest.raises(MessageInvalid, match=rf"^{kind.__name__}: {field}: Field required"):
        unpack(kind, json.dumps(data).encode())


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (LEASE, "incarnation", -1),
        (LEASE, "incarnation", 2**15),
        (LEASE, "pid", "7"),
        (LEASE, "pid", 7.0),
        (LEASE, "pid", True),
        (LEASE, "pid", 2**63),
        (LEASE, "pid", 10**400),
        (LEASE, "host", 1),
        (MANIFEST, "version", 0),
        (MANIFEST, "chunk_bytes", 0),
        (MANIFEST, "chunk_bytes", (1 << 26) + 1),
        (MANIFEST, "total_bytes", -1),
        (EXAMPLES[Control], "phase", "run"),
        (EXAMPLES[Control], "random_actions", 1),
        (EXAMPLES[WorkerStatus], "worker", 2**16),
        (EXAMPLES[WorkerStatus], "state", "Sleeping"),
        (LEARNER, "mean_return", "1"),
    ],
    ids=lambda value: "" if hasattr(value, "__slots__") else str(value)[:20],
)
def test_value_out_of_range_or_of_another_type_is_named(message: Any, field: str, value: object) -> None:
    with pytest.raises(MessageInvalid, match=rf"^{type(message).__name__}: {field}: "):
        unpack(type(message), as_json(message, **{field: value}))


def test_nested_field_is_named_with_its_path() -> None:
    data = as_json(MANIFEST).replace(b"[2, 3]", b"[2, -3]")
    with pytest.raises(MessageInvalid, match=r"^Manifest: parameters\.0\.shape\.1: .* greater than or equal to 0"):
        unpack(Manifest, data)


@KINDS
@given(data=st.binary(max_size=60) | st.sampled_from([b"[]", b"null", b"1", b'"a"', b"[" * 500, b"{" * 500]))
def test_bytes_that_are_no_message_are_invalid(kind: type, data: bytes) -> None:
    with pytest.raises(MessageInvalid, match=kind.__name__):
        unpack(kind, data)


def test_message_over_a_mebibyte_is_refused_before_it_is_read() -> None:
    longest = pack(Lease(incarnation=0, host="a" * (MAX_MESSAGE_BYTES - 100), pid=1))
    unpack(Lease, longest)
    with pytest.raises(MessageInvalid, match=f"Lease of {MAX_MESSAGE_BYTES + 1} bytes exceeds {MAX_MESSAGE_BYTES}"):
        unpack(Lease, longest.ljust(MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_mean_return_of_a_diverged_policy_arrives(value: float) -> None:
    got = unpack(LearnerStatus, pack(LearnerStatus(**asdict(LEARNER) | {"mean_return": value}))).mean_return
    assert got == value or (got is not None and math.isnan(got) and math.isnan(value))


def test_error_that_names_an_odd_file_arrives_readable() -> None:
    status = WorkerStatus(**asdict(EXAMPLES[WorkerStatus]) | {"error": "no file caf\udce9.xml, nor \N{SNOWMAN}"})
    assert unpack(WorkerStatus, pack(status)).error == "no file caf?.xml, nor \N{SNOWMAN}"


def test_errors_of_workers_hold_nothing_that_a_terminal_obeys() -> None:
    odd = "a\x1b]0;title\x07\x9b2J\r\tb\n"
    status = WorkerStatus(**asdict(EXAMPLES[WorkerStatus]) | {"error": odd, "answer": Answer(number=1, error=odd)})
    arrived = unpack(WorkerStatus, pack(status))
    assert arrived.answer is not None
    assert arrived.error == arrived.answer.error == "a]0;title2J\tb\n"


@pytest.mark.parametrize(("total_bytes", "chunks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_manifest_counts_its_chunks(total_bytes: int, chunks: int) -> None:
    assert Manifest(**asdict(MANIFEST) | {"total_bytes": total_bytes}).chunks == chunks
