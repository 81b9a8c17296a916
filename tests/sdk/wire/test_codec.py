"""Round trips of the codec: tensors arrive bit for bit, without copies, and aligned."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sdk.allocations import allocates_at_most
from tests.sdk.wire.dtypes import DTYPES
from tests.sdk.wire.joined_chunks import joined
from tests.sdk.wire.tensors import bits, tensors

from rollfleet.errors import MessageTooLarge
from rollfleet.wire.codec import ALIGNMENT, Key, decode, empty_buffer, encode

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


characters = st.characters(exclude_categories=["Cs"])
keys = st.lists(st.text(characters, min_size=1, max_size=12), min_size=1, max_size=4).map(tuple)
messages = st.tuples(st.binary(max_size=200), st.dictionaries(keys, tensors(DTYPES), max_size=6))


@given(messages)
@relaxed
def test_any_message_arrives_bit_for_bit(message: tuple[bytes, dict[Key, torch.Tensor]]) -> None:
    meta, sent = message
    encoded = encode(meta, sent)
    buffer = joined(encoded)
    assert len(buffer) == encoded.nbytes
    got_meta, got = decode(buffer)
    assert got_meta == meta
    assert list(got) == list(sent)
    for key, tensor in sent.items():
        assert (got[key].dtype, got[key].shape) == (tensor.dtype, tensor.shape)
        assert bits(got[key]) == bits(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24).view(4, 6)[::2, 1:4],
        torch.arange(3.0).expand(4, 3),
        torch.nn.Parameter(torch.rand(3)),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,  # one element: contiguous, so that no copy resolves the negation
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
    ids=["strided", "expanded", "requires_grad", "conjugate", "negative", "channels_last"],
)
def test_tensor_that_is_not_plain_memory_arrives_by_value(tensor: torch.Tensor) -> None:
    _, got = decode(joined(encode(b"", {("a",): tensor})))
    assert torch.equal(got[("a",)], tensor.detach())
    assert not got[("a",)].requires_grad


def test_tensors_of_the_same_shapes_do_not_get_each_others_values() -> None:
    first, second = (decode(joined(encode(b"", {("a",): torch.full((3,), value)})))[1] for value in (1, 2))
    assert first[("a",)].tolist() == [1, 1, 1]
    assert second[("a",)].tolist() == [2, 2, 2]


# Memory.


def test_encoding_does_not_copy_contiguous_tensors() -> None:
    tensor = torch.rand(1 << 18)
    with allocates_at_most(50_000):
        encoded = encode(b"", {("a",): tensor})
    addresses = [np.frombuffer(part, np.uint8).__array_interface__["data"][0] for part in encoded.parts]
    assert tensor.data_ptr() in addresses


def test_decoded_tensors_are_views_that_keep_the_buffer_alive() -> None:
    buffer = joined(encode(b"", {("a",): torch.arange(1000)}))
    start = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    _, got = decode(buffer)
    assert start < got[("a",)].data_ptr() < start + len(buffer)
    del buffer
    gc.collect()
    bytearray(b"\xff" * 9000)
    got[("a",)] += 1
    assert torch.equal(got[("a",)], torch.arange(1, 1001))


def test_a_small_tensor_does_not_keep_the_buffer_alive() -> None:
    encoded = encode(b"", {("image",): torch.zeros(10_000), ("reward",): torch.arange(10)})
    buffer = empty_buffer(encoded.nbytes)
    buffer[:] = joined(encoded)
    alive = weakref.ref(buffer.base)
    _, got = decode(buffer)
    reward = got.pop(("reward",))
    del buffer
    assert alive() is not None
    del got
    assert alive() is None
    assert reward.tolist() == [*range(10)]


def test_tensors_in_an_aligned_buffer_are_aligned() -> None:
    encoded = encode(b"x", {(name,): torch.ones(n, dtype=torch.uint8) for name, n in [("a", 1), ("b", 64), ("c", 65)]})
    buffer = empty_buffer(encoded.nbytes)
    buffer[:] = joined(encoded)
    _, got = decode(buffer)
    assert [tensor.data_ptr() % ALIGNMENT for tensor in got.values()] == [0, 0, 0]


@pytest.mark.parametrize("shift", [1, 3, 8])
def test_tensors_of_a_misaligned_buffer_are_aligned_all_the_same(shift: int) -> None:
    frame = joined(encode(b"meta", {("observation",): torch.arange(6, dtype=torch.float32).view(2, 3)}))
    backing = empty_buffer(len(frame) + shift)
    backing[shift:] = frame
    for buffer in (backing[shift:], backing.data[shift:]):
        _, got = decode(buffer)
        assert got[("observation",)].data_ptr() % 16 == 0
        assert got[("observation",)].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_read_only_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="writable"):
        decode(memoryview(bytes(joined(encode(b"", {})))))


@pytest.mark.parametrize("key", [(), ("",), ("a" * 257,), ("a",) * 17, ("\ud800",), ("a", 1), "observation"], ids=ascii)
def test_key_that_a_receiver_would_refuse_is_not_sent(key: Key) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        encode(b"", {key: torch.zeros(1)})


def test_longest_and_deepest_key_and_a_tensor_of_32_dimensions_can_be_sent() -> None:
    key = ("\N{SNOWMAN}" * 256,) * 16
    _, got = decode(joined(encode(b"", {key: torch.ones((1,) * 32)})))
    assert list(got) == [key]
    assert torch.equal(got[key], torch.ones((1,) * 32))


def test_more_than_1024_tensors_are_not_sent() -> None:
    tensor = torch.zeros(1)
    assert len(decode(joined(encode(b"", {(str(i),): tensor for i in range(1024)})))[1]) == 1024
    with pytest.raises(ValueError, match="tensors"):
        encode(b"", {(str(i),): tensor for i in range(1025)})


def test_meta_and_header_over_a_mebibyte_are_not_sent() -> None:
    assert decode(joined(encode(bytes(1 << 20), {})))[0] == bytes(1 << 20)
    with pytest.raises(MessageTooLarge, match="meta of 1048577 bytes"):
        encode(bytes((1 << 20) + 1), {})
    with pytest.raises(MessageTooLarge, match="header"):
        encode(b"", {(f"{i:0256}",) * 16: torch.zeros(1) for i in range(300)})


@pytest.mark.parametrize(
    "tensor", [torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.float8_e4m3fn)], ids=["sparse", "float8"]
)
def test_tensor_that_has_no_plain_bytes_is_refused_by_name(tensor: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="'next', 'reward'"):
        encode(b"", {("next", "reward"): tensor})
