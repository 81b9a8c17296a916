"""A tensor's bytes, compressed where that pays: a look at the first frames spares noise and floats the work."""

from typing import Literal, TypeAlias

import cramjam
import numpy as np
from numpy.typing import NDArray

from rollfleet.errors import MessageCorrupt
from rollfleet_api.job import Compression

Encoding: TypeAlias = Literal["raw", "lz4", "zstd"]
"""The form of a tensor's bytes in a message."""

LEAST_GAIN = 1.3
"""A tensor is compressed if it becomes this many times smaller."""

MOST_BYTES = 1 << 30
"""Size of a compressed tensor at most: LZ4 has a limit of 2 GiB."""

_LEAST_BYTES = 4 << 10  # a tensor of less costs more time than its bytes
_LOOK_BYTES = 64 << 10  # the first frames
_ZSTD_LEVEL = 1


def compress(data: memoryview, compression: Compression) -> tuple[Encoding, memoryview]:
    """Return the form in which a tensor's bytes are sent, and its bytes: `data` itself, or new memory."""
    if compression is Compression.NONE or not _LEAST_BYTES <= data.nbytes <= MOST_BYTES:
        return "raw", data
    encoding: Encoding = "zstd" if compression is Compression.ZSTD else "lz4"
    packed = data
    for part in (data[:_LOOK_BYTES], data) if data.nbytes > 2 * _LOOK_BYTES else (data,):
        if encoding == "lz4":
            packed = memoryview(cramjam.lz4.compress_block(part, store_size=False))
        else:
            packed = memoryview(cramjam.zstd.compress(part, level=_ZSTD_LEVEL))
        if part.nbytes < LEAST_GAIN * packed.nbytes:
            return "raw", data
    return encoding, packed


def decompress(packed: NDArray[np.uint8], encoding: Encoding, out: NDArray[np.uint8]) -> None:
    """Decompress a tensor's bytes into `out`, without a copy.

    Raises:
        MessageCorrupt: They have another size, or are no compressed bytes.
    """
    try:
        if encoding == "lz4":  # without `output_len` it would take the first bytes for the size
            nbytes = cramjam.lz4.decompress_block_into(packed.data, out.data, output_len=out.nbytes)
        else:
            nbytes = cramjam.zstd.decompress_into(packed.data, out.data)
    except cramjam.DecompressionError as error:
        raise MessageCorrupt(f"bytes in {encoding} cannot be decompressed: {error}") from error
    if nbytes != out.nbytes:
        raise MessageCorrupt(f"bytes in {encoding} make {nbytes} bytes instead of {out.nbytes}")
