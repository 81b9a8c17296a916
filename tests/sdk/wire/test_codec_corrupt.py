"""No bytes whatsoever make the codec do worse than raise a `WireError`: cut, flipped, or lying about themselves."""

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sdk.allocations import allocates_at_most
from tests.sdk.wire.dtypes import DTYPES
from tests.sdk.wire.forged_messages import FIELDS, forged, sealed, tensor_header
from tests.sdk.wire.joined_chunks import joined

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire.codec import decode, encode

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@contextmanager
def grows_by_at_most(nbytes: int) -> Iterator[None]:
    """Bounds the process's peak of resident memory: pydantic's parser allocates where tracemalloc does not see it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the resident size
    except OSError:
        pytest.skip("this system does not let a process reset its peak of resident memory")
    before = resident_peak_bytes()
    yield
    assert resident_peak_bytes() - before <= nbytes


def resident_peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def sample() -> bytearray:
    """A small message with everything in it: several dtypes, a bool, padding, no elements, no dimensions."""
    return joined(
        encode(
            b"meta",
            {
                ("observation",): torch.arange(6, dtype=torch.float32).view(2, 3),
                ("next", "done"): torch.tensor([True, False, True]),
                ("next", "reward"): torch.empty(0, 3, dtype=torch.bfloat16),
                ("step",): torch.tensor(7),
            },
        )
    )


def test_message_cut_anywhere_or_lengthened_is_corrupt() -> None:
    frame = sample()
    for other in (*(frame[:length] for length in range(len(frame))), frame + b"\0"):
        with pytest.raises(MessageCorrupt):
            decode(other)


def test_any_flipped_bit_is_noticed() -> None:
    frame = sample()
    for bit in range(len(frame) * 8):
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises((MessageCorrupt, MessageTooLarge)):
            decode(frame)
        frame[bit // 8] ^= 1 << bit % 8
    decode(frame)


def test_any_bit_flipped_under_a_right_checksum_is_noticed_or_harmless() -> None:
    frame = sample()
    expected = {key: (tensor.dtype, tensor.shape) for key, tensor in decode(bytearray(frame))[1].items()}
    payload_at = len(frame) - 136  # 24, 3, 0 and 8 bytes, each at a multiple of 64
    changed = 0
    for bit in range(len(frame) * 8):
        forged = bytearray(frame)
        forged[bit // 8] ^= 1 << bit % 8
        try:
            _, got = decode(sealed(forged))
        except (MessageCorrupt, MessageTooLarge):
            changed += 1
            continue
        assert sum(tensor.nbytes for tensor in got.values()) < len(frame)
        if bit // 8 >= payload_at:
            assert {key: (tensor.dtype, tensor.shape) for key, tensor in got.items()} == expected
    assert changed > 1000


@given(*[st.integers(0, limit) for limit in (2**32 - 1, 2**32 - 1, 2**32 - 1, 2**64 - 1)])
@relaxed
def test_false_lengths_are_refused(version: int, header: int, meta: int, payload: int) -> None:
    frame = sample()
    frame[:24] = FIELDS.pack(b"RLFT", version % 2, header, meta, payload)
    with pytest.raises((MessageCorrupt, MessageTooLarge)):
        decode(sealed(frame))


@pytest.mark.parametrize("change", [-136, -1, 1, 64, 2**62])
def test_false_payload_length_is_refused(change: int) -> None:
    frame = sample()
    (payload_bytes,) = struct.unpack_from("<Q", frame, 16)
    frame[16:24] = struct.pack("<Q", payload_bytes + change)
    with pytest.raises(MessageCorrupt, match="the message says that it has"):
        decode(sealed(frame))


odd_integers = st.one_of(
    st.integers(), st.sampled_from([-1, 2**31, 2**40, 2**48, 2**62, 2**63, 2**64, 2**64 + 64, 10**400])
)
odd_values = st.recursive(
    st.one_of(st.none(), st.booleans(), odd_integers, st.floats(), st.text(max_size=4)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["key", "dtype", "shape", "offset"]), odd_values)
@relaxed
def test_header_with_an_odd_value_is_corrupt_or_means_the_payload(field: str, value: object) -> None:
    frame = forged(tensor_header(**{field: value}), bytes(64))
    try:
        _, got = decode(frame)
    except MessageCorrupt:
        return
    (tensor,) = got.values()
    assert tensor.nbytes == 64


@given(st.lists(st.one_of(st.integers(0, 3), odd_integers), max_size=34), st.sampled_from(DTYPES))
@relaxed
def test_false_shape_never_costs_memory(shape: list[int], dtype: torch.dtype) -> None:
    frame = forged(tensor_header(shape=shape, dtype=str(dtype).removeprefix("torch.")), bytes(64))
    with allocates_at_most(100_000):
        try:
            _, got = decode(frame)
        except MessageCorrupt:
            return
    assert got[("a",)].nbytes == 64


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shape": [63]}, "shapes need 63 bytes"),
        ({"shape": [65]}, "shapes need 65 bytes"),
        ({"shape": [-64]}, "greater than or equal to 0"),
        ({"shape": [64.0]}, "integer"),
        ({"shape": [True] * 3 + [64]}, "integer"),
        ({"shape": [2**40 + 1, 0]}, "less than or equal"),
        ({"shape": [2**40, 2**40, 0]}, "more than"),
        ({"shape": [1] * 33 + [64]}, "at most 32"),
        ({"dtype": "float8"}, "dtype"),
        ({"dtype": "object"}, "dtype"),
        ({"dtype": "qint8"}, "dtype"),
        ({"key": []}, "at least 1"),
        ({"key": [""]}, "at least 1"),
        ({"key": ["a" * 257]}, "at most 256"),
        ({"key": ["a"] * 17}, "at most 16"),
        ({"key": "a"}, "valid array"),
        ({"offset": 0}, "offset"),
        ({"shape": []}, "shapes need 1 bytes"),
    ],
    ids=str,
)
def test_contradiction_in_the_header_is_named(changes: dict[str, object], reason: str) -> None:
    assert list(decode(forged(tensor_header(), bytes(64)))[1]) == [("a",)]
    with pytest.raises(MessageCorrupt, match=reason):
        decode(forged(tensor_header(**changes), bytes(64)))


def test_two_tensors_of_one_key_are_corrupt() -> None:
    one = {"key": ["a"], "dtype": "uint8", "shape": [64]}
    with pytest.raises(MessageCorrupt, match="same key"):
        decode(forged(json.dumps({"tensors": [one, one]}).encode(), bytes(128)))


def test_bool_that_is_neither_0_nor_1_is_corrupt() -> None:
    header = tensor_header(dtype="bool")
    assert decode(forged(header, bytes(63) + b"\1"))[1][("a",)].sum() == 1
    with pytest.raises(MessageCorrupt, match="bool tensor"):
        decode(forged(header, bytes(63) + b"\2"))


def test_other_magic_and_other_version_are_named() -> None:
    frame = sample()
    with pytest.raises(MessageCorrupt, match="not a message of rollfleet"):
        decode(sealed(bytearray(b"PK\3\4") + frame[4:]))
    with pytest.raises(MessageCorrupt, match="format 2; this rollfleet reads format 1"):
        decode(sealed(frame[:4] + struct.pack("<I", 2) + frame[8:]))


@pytest.mark.parametrize("field", [2, 3], ids=["header", "meta"])
def test_header_and_meta_that_claim_more_than_a_mebibyte_are_too_large(field: int) -> None:
    values = [b"RLFT", 1, 0, 0, 0]
    values[field] = (1 << 20) + 1
    frame = sealed(bytearray(FIELDS.pack(*values) + bytes(8 + 2 * (1 << 20))))
    with allocates_at_most(50_000), pytest.raises(MessageTooLarge):
        decode(frame)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * (1 << 20),
        b'{"tensors":[' + b"[]," * 300_000 + b"[]]}",
        b'{"tensors":[' + b"{}," * 300_000 + b"{}]}",
        b"{" + b",".join(b'"%x":0' % i for i in range(100_000)) + b"}",
        b'{"tensors":[' + b'{"key":["a"],"dtype":"uint8","shape":[]},' * 25_000 + b"0]}",
        b'{"tensors":[],"' + b"x" * 1_000_000 + b'":0}',
        tensor_header(shape=[0] * 300_000),
        tensor_header(shape=10**4200),
        tensor_header(key=["a"] * 200_000),
        tensor_header(dtype="f" * 1_000_000),
    ],
    ids=lambda header: f"{header[:12]!r}-{len(header)}",
)
def test_long_hostile_header_costs_little_memory_and_has_a_short_error(header: bytes) -> None:
    frame = forged(header, bytes(64))
    with grows_by_at_most(64 << 20), pytest.raises(MessageCorrupt) as error:
        decode(frame)
    assert len(str(error.value)) < 500
