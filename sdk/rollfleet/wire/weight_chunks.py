"""A version of the weights in chunks, and back. The chunks are sent before the version's manifest.

One chunk, all numbers little-endian:

```
offset  bytes
0       4      magic b"RFW1"
4       4      u32  index of this chunk
8       8      u64  version
16      8      u64  total bytes of the version
24      4      u32  bytes of each piece but the last
28      4      u32  the learner's session, modulo 2^32
32             the chunk's piece of the version
```

Each chunk names its version and its session. So a reader notices a chunk that a newer version has overwritten, and
chunks of a replaced learner never mix with its successor's. A version counts only once its manifest has come and its
checksum is right.
"""

import struct
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollfleet.errors import MessageCorrupt
from rollfleet.wire.chunks import CHUNK_BYTES, Allocate, Chunk, Reassembly, Received, cut_pieces, piece_count
from rollfleet.wire.codec import empty_buffer
from rollfleet_api.messages import Manifest, Parameter

_PREFIX = struct.Struct("<4sIQQII")
_SESSIONS = 1 << 32  # a session's lower half tells it from the one before
_MAGIC = b"RFW1"

MAX_CHUNKS = 1 << 20  # of one version: a false chunk size must not cost memory for each chunk
MAX_PENDING = 2


def manifest_of(
    session: int, version: int, parameters: tuple[Parameter, ...], data: memoryview, *, max_chunk_bytes: int
) -> Manifest:
    """Make the manifest of a version."""
    return Manifest(
        session=session,
        version=version,
        parameters=parameters,
        total_bytes=len(data),
        chunk_bytes=min(CHUNK_BYTES, max_chunk_bytes - _PREFIX.size),
        checksum=xxhash.xxh3_64_hexdigest(data),
    )


def cut(manifest: Manifest, data: memoryview) -> Iterator[Chunk]:
    """Cut a version into chunks. They are views: `data` must not change until they are sent."""
    session = manifest.session % _SESSIONS
    pieces = cut_pieces([data], manifest.total_bytes, manifest.chunk_bytes)
    for index, views in enumerate(pieces):
        prefix = _PREFIX.pack(_MAGIC, index, manifest.version, manifest.total_bytes, manifest.chunk_bytes, session)
        yield (prefix, *views)


_Key: TypeAlias = tuple[int, int]  # session and version: the greater one is the newer


def _key(manifest: Manifest) -> _Key:
    return manifest.session % _SESSIONS, manifest.version


class WeightAssembler:
    """Reassembles versions from chunks. Keeps the two newest versions, and any that was asked for by its manifest.

    Args:
        total_bytes: Size of a version: the receiver knows its own policy. Chunks of other sizes are ignored; their
            manifest will be refused by name.
        allocate: Returns the memory of one version, as `empty_buffer` does.

    Example:
        >>> data = memoryview(bytes(range(100)))
        >>> manifest = manifest_of(1, 1, (), data, max_chunk_bytes=64)
        >>> assembler = WeightAssembler(100)
        >>> for pieces in cut(manifest, data):
        ...     assembler.add(b"".join(pieces))
        >>> assembler.finish(manifest).tobytes() == data
        True
    """

    def __init__(self, total_bytes: int, allocate: Allocate = empty_buffer) -> None:
        self._total_bytes, self._allocate = total_bytes, allocate
        self._pending: dict[_Key, Reassembly] = {}

    def add(self, chunk: Received) -> None:
        """Add one chunk, in any order. It is copied, not kept.

        Raises:
            MessageCorrupt: It is not a chunk of weights, or its fields contradict each other.
        """
        if len(chunk) < _PREFIX.size:
            raise MessageCorrupt(f"a chunk of weights has at least {_PREFIX.size} bytes, this has {len(chunk)}")
        magic, index, version, total_bytes, piece_bytes, session = _PREFIX.unpack_from(chunk)
        if magic != _MAGIC:
            raise MessageCorrupt(f"no chunk of weights: it begins with {magic!r}")
        if total_bytes != self._total_bytes:
            return
        start = index * piece_bytes
        piece = memoryview(chunk)[_PREFIX.size :]
        if not piece_bytes or start >= total_bytes or len(piece) != min(piece_bytes, total_bytes - start):
            raise MessageCorrupt(f"chunk {index} of version {version}: {len(piece)} bytes do not fit its offset")
        key = (session, version)
        pending = self._pending.get(key)
        if pending is None:
            if len(self._pending) >= MAX_PENDING and key < min(self._pending):
                return
            pending = self._begin(key, piece_bytes)
        if piece_bytes != pending.piece_bytes:
            raise MessageCorrupt(
                f"chunk {index} of version {version}: its chunks were {pending.piece_bytes} bytes each"
            )
        pending.add(index, piece)

    def missing(self, manifest: Manifest) -> list[int]:
        """Return the indices of a version's missing chunks. From now on, the manifest sets the size of its chunks.

        Raises:
            MessageCorrupt: The manifest and this policy differ in size.
        """
        self._check_size(manifest)
        pending = self._pending.get(_key(manifest))
        if self._total_bytes and (pending is None or pending.piece_bytes != manifest.chunk_bytes):
            pending = self._begin(_key(manifest), manifest.chunk_bytes)
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
        pending = self._pending.get(_key(manifest))
        if pending is None or not pending.complete:
            raise MessageCorrupt(f"version {manifest.version}: chunks are missing")
        del self._pending[_key(manifest)]
        if xxhash.xxh3_64_hexdigest(pending.buffer.data) != manifest.checksum:
            raise MessageCorrupt(f"version {manifest.version}: its checksum is wrong")
        self._pending = {key: kept for key, kept in self._pending.items() if key > _key(manifest)}
        return pending.buffer

    def _check_size(self, manifest: Manifest) -> None:
        if manifest.total_bytes != self._total_bytes:
            raise MessageCorrupt(
                f"version {manifest.version}: its manifest says {manifest.total_bytes} bytes, the policy here has "
                f"{self._total_bytes}"
            )

    def _begin(self, key: _Key, piece_bytes: int) -> Reassembly:
        count = piece_count(self._total_bytes, piece_bytes)
        if count > MAX_CHUNKS:
            raise MessageCorrupt(f"version {key[1]}: {count} chunks of {piece_bytes} bytes are over {MAX_CHUNKS}")
        self._pending.pop(key, None)
        while len(self._pending) >= MAX_PENDING:
            del self._pending[min(self._pending)]
        pending = self._pending[key] = Reassembly(self._allocate(self._total_bytes), piece_bytes)
        return pending
