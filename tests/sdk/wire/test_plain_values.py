"""Plain values and arrays as JSON."""

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire.plain_values import MAX_ARRAY_BYTES, from_json, to_json

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def packed(nbytes: int) -> str:
    return base64.b64encode(zlib.compress(bytes(nbytes))).decode()


@given(PLAIN)
def test_plain_values_come_back(value: Any) -> None:
    assert from_json(to_json(value, max_bytes=1 << 20)) == value


@given(arrays.arrays(arrays.scalar_dtypes().filter(lambda each: each.kind in "biuf"), arrays.array_shapes(min_side=0)))
def test_arrays_come_back_in_lists_and_dicts(array: Any) -> None:
    found = from_json(to_json({"picture": [array]}, max_bytes=1 << 20))["picture"][0]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_tensors_and_numbers_of_numpy_come_back_as_arrays_and_numbers() -> None:
    found = from_json(to_json([torch.ones(2, requires_grad=True), np.float32(0.5), np.True_], max_bytes=1000))
    assert [found[0].tolist(), found[1:]] == [[1.0, 1.0], [0.5, True]]


@pytest.mark.parametrize(
    "value", [object(), {1j}, np.array([object()]), b"bytes"], ids=lambda value: type(value).__name__
)
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match=f"^{type(value).__name__} is no number, text, list, dict or array$"):
        to_json([value], max_bytes=1000)


@pytest.mark.parametrize("array", [[], [1, 2, 3], ["<f8", [1], None], ["<f8", 1, "x"], ["<f8", [1], "x", 2]], ids=str)
def test_a_dict_of_the_senders_own_is_no_array(array: Any) -> None:
    assert from_json(to_json({"array": array}, max_bytes=1000)) == {"array": array}


def test_keys_other_than_text_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^a dict has the key 1, and keys are text: write '1'$"):
        to_json([{"levels": ({1: 2},)}], max_bytes=1000)


def test_long_values_are_refused() -> None:
    with pytest.raises(MessageTooLarge):
        to_json("x" * 100, max_bytes=100)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        *(
            json.dumps({"array": array})
            for array in (
                ["<f8", [2], packed(8)],
                ["<f8", [1], packed(800)],
                ["<f8", [-1], packed(8)],
                ["<f8", [0.5], packed(8)],
                ["<f8", ["1"], packed(8)],
                ["<f8", [1], "not base64"],
                ["|u1", [MAX_ARRAY_BYTES + 1], packed(MAX_ARRAY_BYTES + 1)],
                ["<u8", [1_000_000_000, "x"], ""],  # `math.prod` would repeat the text
                ["<u8", [True], packed(8)],
            )
        ),
        json.dumps([{"array": ["|u1", [MAX_ARRAY_BYTES // 2], packed(MAX_ARRAY_BYTES // 2)]}] * 3),
    ],
    ids=lambda text: text[:40],
)
def test_hostile_text_is_corrupt(text: str) -> None:
    with pytest.raises(MessageCorrupt):
        from_json(text)
