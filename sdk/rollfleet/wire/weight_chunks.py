"""A version of the weights in chunks, and back; see `chunks` for their format. The version's manifest is sent last.

The key of a version is its number. So a reader notices a chunk that a newer version, or another learner's, has
overwritten. A version counts only once its manifest has come and its checksum is right.
"""

from collections.abc import Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollfleet.errors import MessageCorrupt
from rollfleet.wire.chunks import (
    CHUNK_BYTES,
    PREFIX_BYTES,
    Chunk,
    Reassembly,
    Received,
    chunk_count,
    cut_message,
    peek,
)
from rollfleet.wire.codec import Allocate, empty_buffer
from rollfleet_api.messages import Manifest, Parameter

MAX_PENDING = 2


def manifest_of(version: int, parameters: tuple[Parameter, ...], data: memoryview, *, max_chunk_bytes: int) -> Manifest:
    """Make the manifest of a version in chunks of at most `max_chunk_bytes` and `CHUNK_BYTES`."""
    return Manifest(
        version=version,
        parameters=parameters,
        total_bytes=len(data),
        chunks=chunk_count(len(data), min(CHUNK_BYTES, max_chunk_bytes)),
        checksum=xxhash.xxh3_64_hexdigest(data),
    )


def cut(manifest: Manifest, data: memoryview) -> Iterator[Chunk]:
    """Cut a version into chunks; see `cut_message`."""
    return cut_message(manifest.version.to_bytes(16, "little"), [data], manifest.total_bytes, manifest.chunks)


class WeightAssembler:
    """Reassembles versions from chunks. Keeps the two newest versions, and any that was asked for by its manifest.

    Args:
        total_bytes: Size of a version: the receiver knows its own policy. Chunks of other sizes are ignored; their
            manifest will be refused by name.
        allocate: Returns the memory of one version, as `empty_buffer` does.

    Example:
        >>> data = memoryview(bytes(range(100)))
        >>> manifest = manifest_of(1, (), data, max_chunk_bytes=64)
        >>> assembler = WeightAssembler(100)
        >>> for pieces in cut(manifest, data):
        ...     assembler.add(b"".join(pieces))
        >>> assembler.finish(manifest).tobytes() == data
        True
    """

    def __init__(self, total_bytes: int, allocate: Allocate = empty_buffer) -> None:
        self._total_bytes, self._allocate = total_bytes, allocate
        self._pending: dict[int, Reassembly] = {}

    def add(self, chunk: Received) -> None:
        """Add one chunk, in any order. It is copied, not kept.

        Raises:
            MessageCorrupt: It is not a chunk of weights, or its fields contradict each other.
        """
        header = peek(chunk)
        if header.total_bytes != self._total_bytes:
            return
        key = int.from_bytes(header.key, "little")
        pending = self._pending.get(key)
        if pending is None:
            if len(self._pending) >= MAX_PENDING and key < min(self._pending):
                return
            pending = self._begin(key, header.count)
        if header.count != pending.count:
            raise MessageCorrupt(f"version {key}: a chunk of {header.count}, not of {pending.count} as before")
        pending.add(header.index, memoryview(chunk).cast("B")[PREFIX_BYTES:])

    def missing(self, manifest: Manifest) -> list[int]:
        """Return the indices of a version's missing chunks. From now on, the manifest sets their number.

        Raises:
            MessageCorrupt: The manifest and this policy differ in size.
        """
        self._check_size(manifest)
        pending = self._pending.get(manifest.version)
        if self._total_bytes and (pending is None or pending.count != manifest.chunks):
            pending = self._begin(manifest.version, manifest.chunks)
        return pending.missing() if pending else []

    def finish(self, manifest: Manifest) -> NDArray[np.uint8]:
        """Return all bytes of a complete version, and forget older versions. The caller owns the memory.

        Raises:
            MessageCorrupt: A chunk is missing, the manifest and this policy differ in size, or the checksum is wrong:
                fetch the version again.
        """
        self._check_size(manifest)
        if self._total_bytes == 0:
            return np.empty(0, np.uint8)
        pending = self._pending.get(manifest.version)
        if pending is None or not pending.complete:
            raise MessageCorrupt(f"version {manifest.version}: chunks are missing")
        del self._pending[manifest.version]
        if xxhash.xxh3_64_hexdigest(pending.buffer.data) != manifest.checksum:
            raise MessageCorrupt(f"version {manifest.version}: its checksum is wrong")
        self._pending = {key: kept for key, kept in self._pending.items() if key > manifest.version}
        return pending.buffer

    def _check_size(self, manifest: Manifest) -> None:
        if manifest.total_bytes != self._total_bytes:
            raise MessageCorrupt(
                f"version {manifest.version}: its manifest says {manifest.total_bytes} bytes, the policy here has "
                f"{self._total_bytes}"
            )
        if self._total_bytes and not 0 < manifest.chunks <= self._total_bytes:
            raise MessageCorrupt(f"version {manifest.version}: {self._total_bytes} bytes in {manifest.chunks} chunks")

    def _begin(self, key: int, count: int) -> Reassembly:
        self._pending.pop(key, None)
        while len(self._pending) >= MAX_PENDING:
            del self._pending[min(self._pending)]
        pending = self._pending[key] = Reassembly(self._allocate(self._total_bytes), count)
        return pending
