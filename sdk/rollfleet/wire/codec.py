"""Tensors <-> bytes of one message: a typed header, a checksum, and the tensors' own memory. No pickle, no code.

One message, all numbers little-endian:

```
offset  bytes
0       4      magic b"RLFT"
4       4      u32  format version
8       4      u32  header length H
12      4      u32  meta length M
16      8      u64  payload length P
24      8      u64  xxh3_64 of every other byte of the message; 0 without a checksum (in shared memory)
32      H      header: JSON {"tensors": [{"key": [...], "dtype": "float32", "shape": [...], "encoding": "raw"}, ...]}
32+H    M      meta: bytes that belong to the caller
...            zeros up to a multiple of 64
S       P      payload: each tensor's bytes, each at a multiple of 64, zeros between, none after the last
```

A tensor with the encoding "lz4" or "zstd" has the number of its compressed bytes, u64, before them. The header has no
offsets and sizes: they follow from the shapes and these numbers. Bytes of a hostile peer end in `MessageCorrupt` or
`MessageTooLarge`. Decoding allocates at most in proportion to the length of the bytes, and for compressed tensors what
the header says, `LARGEST_BATCH_BYTES` at most.
"""

import json
import math
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire.compression import MOST_BYTES, Encoding, compress, decompress
from rollfleet_api.job import Compression

if sys.byteorder != "little":
    raise ImportError("rollfleet sends tensors in little-endian byte order; this machine is big-endian")

Key: TypeAlias = tuple[str, ...]
Buffer: TypeAlias = bytearray | memoryview | npt.NDArray[np.uint8]

Check: TypeAlias = Callable[[Mapping[Key, tuple[int, ...]]], object]
Allocate: TypeAlias = Callable[[int], npt.NDArray[np.uint8]]
"""Returns uninitialised memory of this many bytes, uint8, aligned as that of `empty_buffer`."""

LARGEST_BATCH_BYTES = 4 << 30
"""Size of a batch at most, on its way and with its tensors decompressed."""

ALIGNMENT = 64
"""Tensors begin at multiples of this many bytes: a cache line, and enough for every vector instruction."""

_MAGIC = b"RLFT"
_VERSION = 1
_FIELDS = struct.Struct("<4sIIIQ")  # the part of the prefix that the checksum covers
_CHECKSUM = _SIZE = struct.Struct("<Q")
_PREFIX_BYTES = _FIELDS.size + _CHECKSUM.size

_MAX_HEADER_BYTES = 1 << 20
_MAX_META_BYTES = 1 << 20
_MAX_TENSORS = 1024
_MAX_ELEMENTS = 1 << 48  # zeros in a shape count as ones here: torch multiplies strides that way and must not overflow
_CACHED_HEADER_BYTES = 1 << 14  # a hostile sender must not fill the cache with long headers
_ZEROS = memoryview(bytes(ALIGNMENT))

_DTypeName: TypeAlias = Literal[
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(_DTypeName)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


# fail_fast: else a mebibyte of nonsense makes pydantic collect 900,000 errors, in 260 MB.
_KeyPart: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
_Size: TypeAlias = Annotated[int, Field(ge=0, le=1 << 40)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorHeader:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    key: Annotated[tuple[_KeyPart, ...], Field(min_length=1, max_length=16, fail_fast=True)]
    dtype: _DTypeName
    shape: Annotated[tuple[_Size, ...], Field(max_length=32, fail_fast=True)]
    encoding: Encoding = "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    tensors: Annotated[tuple[_TensorHeader, ...], Field(max_length=_MAX_TENSORS, fail_fast=True)]


_HEADER = TypeAdapter(_Header)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """One tensor of the payload: `nbytes` without compression, dtype `stored` (numpy has no bfloat16)."""

    key: Key
    dtype: torch.dtype
    stored: np.dtype[np.generic]
    shape: tuple[int, ...]
    nbytes: int
    encoding: Encoding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """One message, ready to be sent.

    Attributes:
        parts: The message's bytes, in order. Parts of contiguous CPU tensors are the tensors' own memory: a tensor that
            changes before its message is sent makes the receiver refuse the message.
        nbytes: Size of all parts together.
        saved_bytes: What compression, and folding, have saved.

    Example:
        >>> encoded = encode(b"meta", {("reward",): torch.ones(3)})
        >>> meta, tensors = decode(bytearray(b"".join(encoded.parts)))
        >>> meta, tensors["reward",]
        (b'meta', tensor([1., 1., 1.]))
    """

    parts: tuple[memoryview, ...]
    nbytes: int
    saved_bytes: int = 0


def empty_buffer(nbytes: int) -> npt.NDArray[np.uint8]:
    """Allocate uninitialised memory for one message, uint8 `[nbytes]`, at a multiple of `ALIGNMENT` bytes."""
    raw = np.empty(nbytes + ALIGNMENT - 1, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + nbytes]


def encode(
    meta: bytes,
    tensors: Mapping[Key, torch.Tensor],
    *,
    checksum: bool = True,
    compression: Compression = Compression.NONE,
) -> Encoded:
    """Encode `tensors` and `meta` as one message, without copying contiguous CPU tensors.

    Args:
        meta: The caller's metadata, at most 1 MiB.
        tensors: At most 1024 dense tensors by nested key. Those that are not contiguous, or not on the CPU, are copied.
            Gradients are not sent.
        checksum: Add a checksum, so that the receiver notices changed bytes.
        compression: How to compress the tensors that gain from it.

    Raises:
        MessageTooLarge: `meta`, or the keys and shapes together, are over 1 MiB.
        TypeError: A dtype or a layout (sparse, quantised) cannot be sent; names the key.
        ValueError: A receiver would refuse the keys or shapes: an empty key, a part of more than 256 characters, ...
    """
    if len(meta) > _MAX_META_BYTES:
        raise MessageTooLarge(len(meta), _MAX_META_BYTES, "meta")
    specs: list[tuple[Key, str, tuple[int, ...], Encoding]] = []
    payload: list[memoryview] = []
    end = saved = 0
    for key, tensor in tensors.items():
        dtype, raw = _dtype_name(key, tensor), _raw_bytes(tensor)
        encoding, data = compress(raw, compression)
        specs.append((key, dtype, tensor.shape, encoding))
        if padding := -end % ALIGNMENT:
            payload.append(_ZEROS[:padding])
        end += padding
        if encoding != "raw":
            payload.append(memoryview(_SIZE.pack(data.nbytes)))
            end += _SIZE.size
            saved += raw.nbytes - data.nbytes
        if data.nbytes:
            payload.append(data)
            end += data.nbytes
    header = _header(tuple(specs))
    fields = _FIELDS.pack(_MAGIC, _VERSION, len(header), len(meta), end)
    lead = b"".join((header, meta, _ZEROS[: -(_PREFIX_BYTES + len(header) + len(meta)) % ALIGNMENT]))
    digest = xxhash.xxh3_64(fields)
    digest.update(lead)
    if checksum:
        for part in payload:
            digest.update(part)
    first = b"".join((fields, _CHECKSUM.pack(digest.intdigest() if checksum else 0), lead))
    return Encoded(parts=(memoryview(first), *payload), nbytes=len(first) + end, saved_bytes=saved)


def decode(
    buffer: Buffer, *, checksum: bool = True, allocate: Allocate = empty_buffer, check: Check = lambda _: None
) -> tuple[bytes, dict[Key, torch.Tensor]]:
    """Decode one message in place.

    Args:
        buffer: Exactly one message, writable; the caller must not write to it from now on. A tensor of half of it or
            more is a view that keeps it alive. (If it does not begin at a multiple of 16, it is copied.)
        checksum: Check the checksum.
        allocate: Returns the memory of a compressed tensor.
        check: Gets the shapes of all tensors before memory is taken for any.

    Returns:
        `meta`, and CPU tensors by key in the order they were encoded.

    Raises:
        MessageCorrupt: The bytes are cut, changed, of another format, or contradict themselves.
        MessageTooLarge: The header or `meta` claim more than 1 MiB, or the tensors more than `LARGEST_BATCH_BYTES`.
        ValueError: `buffer` is read-only.
    """
    raw = np.frombuffer(buffer, np.uint8)
    if not raw.flags.writeable:
        raise ValueError(
            "decode makes tensors that share the buffer's memory: pass a writable one, such as a bytearray"
        )
    header_bytes, start = _check_message(raw.data, checksum=checksum)
    header = raw[_PREFIX_BYTES:][:header_bytes].tobytes()
    slots = _slots_cached(header) if header_bytes <= _CACHED_HEADER_BYTES else _slots(header)
    check({slot.key: slot.shape for slot in slots})
    places = _places(slots, raw[start:])
    meta = meta_of(raw.data)

    if raw.__array_interface__["data"][0] % 16:  # loading misaligned elements is undefined behaviour in C++
        raw, given = empty_buffer(raw.nbytes), raw
        raw[:] = given
    tensors: dict[Key, torch.Tensor] = {}
    for slot, (offset, nbytes) in zip(slots, places, strict=True):
        data = raw[start + offset : start + offset + nbytes]
        if slot.encoding != "raw":
            packed, data = data, allocate(slot.nbytes)
            decompress(packed, slot.encoding, data)
        elif 2 * nbytes < raw.nbytes:  # who keeps the rewards of a batch does not keep its images
            part, data = data, empty_buffer(nbytes)
            data[:] = part
        # A bool other than 0 or 1 is undefined behaviour in C++. Checking costs less than rewriting.
        if slot.dtype is torch.bool and slot.nbytes and data.max() > 1:
            raise MessageCorrupt(f"bool tensor {slot.key} has bytes other than 0 and 1")
        tensor = torch.from_numpy(np.ndarray(slot.shape, slot.stored, data))
        tensors[slot.key] = tensor.view(torch.bfloat16) if slot.dtype is torch.bfloat16 else tensor
    return meta, tensors


def meta_of(beginning: memoryview) -> bytes:
    """Return the meta of a message of which only the beginning is there. No checksum is checked.

    Raises:
        MessageCorrupt: This is not the beginning of a message, or is too short.
        MessageTooLarge: See `decode`.
    """
    header_bytes, meta_bytes, *_ = _lengths(beginning)
    meta = bytes(beginning[_PREFIX_BYTES + header_bytes :][:meta_bytes])
    if len(meta) < meta_bytes:
        raise MessageCorrupt(f"the message's first {beginning.nbytes} bytes end before its meta does")
    return meta


def _dtype_name(key: Key, tensor: torch.Tensor) -> str:
    name = _NAMES.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided:
        what = f"{tensor.layout} of {tensor.dtype}"
        raise TypeError(f"tensor {key} is {what}; only dense tensors of {', '.join(_DTYPES)} can be sent")
    return name


def _raw_bytes(tensor: torch.Tensor) -> memoryview:
    # Lazy conjugation and negation are flags on the tensor, not in its memory.
    dense = tensor.detach().cpu().resolve_conj().resolve_neg()
    if dense.dtype is torch.bfloat16:
        dense = dense.view(torch.uint16)
    return dense.numpy().reshape(-1).view(np.uint8).data  # reshape copies only what is not contiguous


@lru_cache(maxsize=64)
def _header(specs: tuple[tuple[Key, str, tuple[int, ...], Encoding], ...]) -> bytes:
    """Make the header of tensors to send, checked as the receiver will check it."""
    described = [
        {"key": key, "dtype": dtype, "shape": shape, "encoding": encoding} for key, dtype, shape, encoding in specs
    ]
    try:
        header = json.dumps({"tensors": described}, ensure_ascii=False, separators=(",", ":")).encode()
        if len(header) > _MAX_HEADER_BYTES:
            raise MessageTooLarge(len(header), _MAX_HEADER_BYTES, "header")
        _slots(header)
    except (MessageCorrupt, UnicodeEncodeError) as exc:
        raise ValueError(f"these tensors cannot be sent: {exc}") from exc
    return header


def _lengths(view: memoryview) -> tuple[int, int, int, int]:
    """Return the lengths of header and meta, and the payload's offset and length, from a message's first bytes."""
    if view.nbytes < _PREFIX_BYTES:
        raise MessageCorrupt(f"{view.nbytes} bytes are too few for a message: the prefix alone has {_PREFIX_BYTES}")
    magic, version, header_bytes, meta_bytes, payload_bytes = _FIELDS.unpack_from(view)
    if magic != _MAGIC:
        raise MessageCorrupt(f"not a message of rollfleet: it begins with {magic!r} instead of {_MAGIC!r}")
    if version != _VERSION:
        raise MessageCorrupt(f"message format {version}; this rollfleet reads format {_VERSION}")
    if header_bytes > _MAX_HEADER_BYTES:
        raise MessageTooLarge(header_bytes, _MAX_HEADER_BYTES, "header")
    if meta_bytes > _MAX_META_BYTES:
        raise MessageTooLarge(meta_bytes, _MAX_META_BYTES, "meta")
    return header_bytes, meta_bytes, _aligned(_PREFIX_BYTES + header_bytes + meta_bytes), payload_bytes


def _check_message(view: memoryview, *, checksum: bool) -> tuple[int, int]:
    """Check a message's lengths and checksum. Return the length of the header, and the payload's offset."""
    header_bytes, _, start, payload_bytes = _lengths(view)
    if start + payload_bytes != view.nbytes:
        raise MessageCorrupt(f"the message says that it has {start + payload_bytes} bytes, but has {view.nbytes}")
    if not checksum:
        return header_bytes, start
    digest = xxhash.xxh3_64(view[: _FIELDS.size])
    digest.update(view[_PREFIX_BYTES:])
    (expected,) = _CHECKSUM.unpack_from(view, _FIELDS.size)
    if digest.intdigest() != expected:
        raise MessageCorrupt("the checksum is wrong: bytes changed after the message was encoded")
    return header_bytes, start


def _slots(header: bytes) -> tuple[_Slot, ...]:
    try:
        parsed = _HEADER.validate_json(header)
    except ValidationError as exc:
        # The error repeats the peer's bytes many times over: report the first problem, and do not chain the rest.
        raise MessageCorrupt(f"the header is not valid: {_first_problem(exc)}") from None
    slots: list[_Slot] = []
    for tensor in parsed.tensors:
        if math.prod(max(size, 1) for size in tensor.shape) > _MAX_ELEMENTS:
            raise MessageCorrupt(f"tensor {tensor.key} has more than {_MAX_ELEMENTS} elements: {tensor.shape}")
        dtype = _DTYPES[tensor.dtype]
        nbytes = math.prod(tensor.shape) * dtype.itemsize
        if tensor.encoding != "raw" and nbytes > MOST_BYTES:
            raise MessageCorrupt(f"tensor {tensor.key} has {nbytes} bytes; compressed ones have {MOST_BYTES} at most")
        stored = np.dtype("uint16" if dtype is torch.bfloat16 else tensor.dtype)
        slots.append(
            _Slot(
                key=tensor.key, dtype=dtype, stored=stored, shape=tensor.shape, nbytes=nbytes, encoding=tensor.encoding
            )
        )
    if len({slot.key for slot in slots}) != len(slots):
        raise MessageCorrupt("two tensors have the same key")
    return tuple(slots)


_slots_cached = lru_cache(maxsize=64)(_slots)


def _places(slots: tuple[_Slot, ...], payload: npt.NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Return the offset and size of each tensor's bytes in the payload."""
    places: list[tuple[int, int]] = []
    end = decompressed = 0
    for slot in slots:
        start, nbytes = _aligned(end), slot.nbytes
        if slot.encoding != "raw":
            decompressed += nbytes
            if start + _SIZE.size > payload.nbytes:
                raise MessageCorrupt(f"the payload of {payload.nbytes} bytes ends before tensor {slot.key}")
            (nbytes,) = _SIZE.unpack_from(payload.data, start)
            start += _SIZE.size
        places.append((start, nbytes))
        end = start + nbytes
    if end != payload.nbytes:
        raise MessageCorrupt(f"the shapes need {end} bytes, the payload has {payload.nbytes}")
    if decompressed and decompressed + payload.nbytes > LARGEST_BATCH_BYTES:
        raise MessageTooLarge(decompressed + payload.nbytes, LARGEST_BATCH_BYTES, "a decompressed batch")
    return places


def _first_problem(exc: ValidationError) -> str:
    if exc.error_count() > 32:
        return f"{exc.error_count()} problems"
    problem = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(part)[:64] for part in problem['loc'])}: {problem['msg'][:200]}"


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
