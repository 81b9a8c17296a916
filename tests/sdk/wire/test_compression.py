"""Tensors that gain from it are compressed, others are not. No bytes decompress to more than their header says."""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.allocations import allocates_at_most
from tests.sdk.wire.dtypes import DTYPES
from tests.sdk.wire.forged_messages import forged, tensor_header
from tests.sdk.wire.joined_chunks import joined

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire.codec import Encoded, Key, decode, empty_buffer, encode
from rollfleet.wire.compression import MOST_BYTES, compress
from rollfleet_api.job import Compression

COMPRESSING = [Compression.AUTO, Compression.LZ4, Compression.ZSTD]
KEY = ("steps", "observation")
IMAGES = (torch.arange(32 * 84 * 84) // 500 % 256).to(torch.uint8).view(1, 32, 84, 84)
NOISE = torch.randint(0, 256, (1, 32, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
FLOATS = torch.randn(64, 376, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def encodings(encoded: Encoded) -> list[str]:
    message = bytes(joined(encoded))
    (length,) = struct.unpack_from("<I", message, 8)
    return [tensor["encoding"] for tensor in json.loads(message[32 : 32 + length])["tensors"]]


@pytest.mark.parametrize("compression", COMPRESSING)
def test_images_become_smaller_and_come_back_bit_by_bit(compression: Compression) -> None:
    tensors: dict[Key, torch.Tensor] = {KEY: IMAGES, ("steps", "noise"): NOISE, ("steps", "action"): torch.zeros(1, 32)}
    plain, encoded = encode(b"meta", tensors), encode(b"meta", tensors, compression=compression)
    assert encodings(encoded) == ["zstd" if compression is Compression.ZSTD else "lz4", "raw", "raw"]
    assert encoded.nbytes < plain.nbytes - IMAGES.nbytes // 2
    assert encoded.nbytes + encoded.saved_bytes >= plain.nbytes
    meta, decoded = decode(joined(encoded))
    assert meta == b"meta"
    assert decoded.keys() == tensors.keys()
    assert all(torch.equal(decoded[key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize("compression", COMPRESSING)
@pytest.mark.parametrize("tensor", [NOISE, FLOATS, FLOATS.float()], ids=["noise", "float64", "float32"])
def test_what_gains_too_little_stays_in_its_own_memory(tensor: torch.Tensor, compression: Compression) -> None:
    encoded = encode(b"", {KEY: tensor}, compression=compression)
    assert encodings(encoded) == ["raw"]
    assert np.shares_memory(np.asarray(encoded.parts[-1]), tensor.numpy())


@pytest.mark.parametrize("compression", COMPRESSING)
def test_first_frames_that_deceive_cost_no_bytes(compression: Compression) -> None:
    """A black screen, then noise."""
    data = torch.cat([torch.zeros_like(NOISE[:, :9]), NOISE], 1).numpy().reshape(-1).data
    assert compress(data, compression) == ("raw", data)


def test_without_compression_nothing_is_compressed() -> None:
    assert encodings(encode(b"", {KEY: IMAGES})) == ["raw"]


@given(st.sampled_from(DTYPES), st.integers(0, 5000), st.integers(1, 600), st.sampled_from([*Compression]))
@settings(deadline=None)
def test_tensors_of_any_dtype_come_back(dtype: torch.dtype, size: int, run: int, compression: Compression) -> None:
    tensor = (torch.arange(size) // run % 2).to(dtype)
    _, decoded = decode(joined(encode(b"", {KEY: tensor, ("after",): torch.ones(3)}, compression=compression)))
    assert decoded[KEY].dtype is dtype
    assert torch.equal(decoded[KEY], tensor)
    assert decoded["after",].tolist() == [1, 1, 1]


def test_it_is_decompressed_straight_into_the_callers_memory() -> None:
    memory = empty_buffer(IMAGES.nbytes)
    _, decoded = decode(joined(encode(b"", {KEY: IMAGES}, compression=Compression.LZ4)), allocate=lambda _: memory)
    assert decoded[KEY].data_ptr() == memory.ctypes.data


@pytest.mark.parametrize("encoding", ["lz4", "zstd"])
@given(st.binary(max_size=200), st.integers(0, 1 << 62) | st.integers(0, 200), st.integers(0, 5000))
@settings(deadline=None)
def test_any_bytes_as_compressed_ones_are_corrupt_or_have_their_size(
    encoding: str, data: bytes, length: int, size: int
) -> None:
    header = tensor_header(shape=[size], encoding=encoding)
    for claimed in (length, len(data)):
        try:
            _, decoded = decode(forged(header, struct.pack("<Q", claimed) + data))
        except MessageCorrupt:
            continue
        assert decoded["a",].shape == (size,)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
@settings(deadline=None)
def test_changed_bytes_are_corrupt_or_have_their_size(compression: Compression, changes: list[tuple[int, int]]) -> None:
    encoding, packed = compress(IMAGES.numpy().reshape(-1).data, compression)
    data = bytearray(packed)
    for at, value in changes:
        data[at % len(data)] = value
    header = tensor_header(shape=[IMAGES.nbytes], encoding=encoding)
    try:
        _, decoded = decode(forged(header, struct.pack("<Q", len(data)) + data))
    except MessageCorrupt:
        return
    assert decoded["a",].nbytes == IMAGES.nbytes


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("change", [-1, 1, 1 << 20])
def test_a_false_size_is_corrupt(compression: Compression, change: int) -> None:
    encoding, packed = compress(IMAGES.numpy().reshape(-1).data, compression)
    header = tensor_header(shape=[IMAGES.nbytes + change], encoding=encoding)
    with pytest.raises(MessageCorrupt, match=encoding):
        decode(forged(header, struct.pack("<Q", packed.nbytes) + packed))


@pytest.mark.parametrize("encoding", ["lz4", "zstd"])
def test_a_false_size_is_refused_before_anything_is_allocated(encoding: str) -> None:
    tensor = {"key": ["a"], "dtype": "uint8", "encoding": encoding}
    one = tensor_header(encoding=encoding, shape=[MOST_BYTES + 1])
    many = json.dumps({"tensors": [tensor | {"key": [str(n)], "shape": [MOST_BYTES]} for n in range(4)]}).encode()
    with allocates_at_most(200_000):
        with pytest.raises(MessageCorrupt, match="at most"):
            decode(forged(one, bytes(8)))
        with pytest.raises(MessageTooLarge):
            decode(forged(many, bytes(64 * 3 + 8)))
