"""A version's bytes in chunks, and back: what travels before the manifest.

Each chunk says which version of which learner's session it belongs to and where it lies, so that a chunk of a newer
version, written over an older one while it was being read, is noticed, and those of a learner that was replaced never
mix with its successor's. A version counts only when its manifest has come and its checksum is right.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollfleet.errors import MessageCorrupt
from rollfleet_api.messages import Manifest, Parameter

_PREFIX = struct.Struct("<4sIQQII")  # magic, chunk, version, total bytes, bytes of each chunk but the last, session
_SESSIONS = 1 << 32  # a session's lower half is enough to tell it from the one before
_MAGIC = b"RFW1"

CHUNK_BYTES = 1 << 20
MAX_CHUNKS = 1 << 20  # of one version: whoever lies about the size of its chunks must not cost memory for each
MAX_PENDING = 2


def manifest_of(
    session: int, version: int, parameters: tuple[Parameter, ...], data: memoryview, *, max_chunk_bytes: int
) -> Manifest:
    """The manifest of a version.

    Args:
        session: The learner's.
        version: The learner's number for it.
        parameters: What lies in `data`.
        data: All its bytes.
        max_chunk_bytes: The largest message that may be sent.
    """
    return Manifest(
        session=session,
        version=version,
        parameters=parameters,
        total_bytes=len(data),
        chunk_bytes=min(CHUNK_BYTES, max_chunk_bytes - _PREFIX.size),
        checksum=xxhash.xxh3_64_hexdigest(data),
    )


def split(manifest: Manifest, data: memoryview) -> Iterator[bytes]:
    """The chunks of a version, each copied once."""
    for chunk in range(manifest.chunks):
        start = chunk * manifest.chunk_bytes
        session = manifest.session % _SESSIONS
        prefix = _PREFIX.pack(_MAGIC, chunk, manifest.version, manifest.total_bytes, manifest.chunk_bytes, session)
        yield b"".join((prefix, data[start : start + manifest.chunk_bytes]))


_Key: TypeAlias = tuple[int, int]  # session and version: the greater one is the newer


def _key(manifest: Manifest) -> _Key:
    return manifest.session % _SESSIONS, manifest.version


@dataclass(slots=True)
class _Pending:
    data: NDArray[np.uint8]
    chunk_bytes: int
    missing: NDArray[np.bool_]  # [chunks]


class WeightAssembler:
    """Puts chunks together. Holds the two newest versions at most, and those that were asked for by their manifest.

    Args:
        total_bytes: What a version must have: the receiver knows its own policy. Others are passed over, since their
            manifest will be refused by name.
        take: Memory for a version, uint8 of so many bytes; None: fresh one each time.
    """

    def __init__(self, total_bytes: int, take: Callable[[int], NDArray[np.uint8]] | None = None) -> None:
        self._total_bytes, self._take = total_bytes, take or _fresh
        self._pending: dict[_Key, _Pending] = {}

    def add(self, chunk: bytes) -> None:
        """Take one chunk, in any order.

        Raises:
            MessageCorrupt: It is none, or lies about its place.
        """
        if len(chunk) < _PREFIX.size:
            raise MessageCorrupt(f"a chunk of weights has at least {_PREFIX.size} bytes, this has {len(chunk)}")
        magic, index, version, total_bytes, chunk_bytes, session = _PREFIX.unpack_from(chunk)
        if magic != _MAGIC:
            raise MessageCorrupt(f"no chunk of weights: it begins with {magic!r}")
        if total_bytes != self._total_bytes:
            return
        start = index * chunk_bytes
        body = memoryview(chunk)[_PREFIX.size :]
        if not chunk_bytes or start >= total_bytes or len(body) != min(chunk_bytes, total_bytes - start):
            raise MessageCorrupt(f"chunk {index} of version {version}: {len(body)} bytes do not fit its place")
        key = (session, version)
        pending = self._pending.get(key)
        if pending is None:
            if len(self._pending) >= MAX_PENDING and key < min(self._pending):
                return
            pending = self._begin(key, chunk_bytes)
        if chunk_bytes != pending.chunk_bytes:
            raise MessageCorrupt(
                f"chunk {index} of version {version}: its chunks were {pending.chunk_bytes} bytes each"
            )
        pending.data[start : start + len(body)] = np.frombuffer(body, np.uint8)
        pending.missing[index] = False

    def missing(self, manifest: Manifest) -> list[int]:
        """The chunks of a version that have not come yet. From now on, its chunks are taken as the manifest has them.

        Raises:
            MessageCorrupt: The manifest is of another size than the policy here.
        """
        self._check_size(manifest)
        pending = self._pending.get(_key(manifest))
        if self._total_bytes and (pending is None or pending.chunk_bytes != manifest.chunk_bytes):
            pending = self._begin(_key(manifest), manifest.chunk_bytes)
        missing: list[int] = np.flatnonzero(pending.missing).tolist() if pending else []
        return missing

    def finish(self, manifest: Manifest) -> NDArray[np.uint8]:
        """All bytes of a version whose chunks have come; older versions are forgotten.

        Raises:
            MessageCorrupt: A chunk is missing, the manifest is of another size than the policy here, or the checksum is
                wrong: fetch it again.
        """
        self._check_size(manifest)
        if self._total_bytes == 0:
            return np.empty(0, np.uint8)
        pending = self._pending.get(_key(manifest))
        if pending is None or pending.missing.any():
            raise MessageCorrupt(f"version {manifest.version}: not all of its chunks have come")
        del self._pending[_key(manifest)]
        if xxhash.xxh3_64_hexdigest(pending.data.data) != manifest.checksum:
            raise MessageCorrupt(f"version {manifest.version}: its checksum is wrong")
        self._pending = {key: kept for key, kept in self._pending.items() if key > _key(manifest)}
        return pending.data

    def _check_size(self, manifest: Manifest) -> None:
        if manifest.total_bytes != self._total_bytes:
            raise MessageCorrupt(
                f"version {manifest.version}: its manifest says {manifest.total_bytes} bytes, the policy here has "
                f"{self._total_bytes}"
            )

    def _begin(self, key: _Key, chunk_bytes: int) -> _Pending:
        count = -(-self._total_bytes // chunk_bytes)
        if count > MAX_CHUNKS:
            raise MessageCorrupt(f"version {key[1]}: {count} chunks of {chunk_bytes} bytes are over {MAX_CHUNKS}")
        self._pending.pop(key, None)
        while len(self._pending) >= MAX_PENDING:
            del self._pending[min(self._pending)]
        pending = _Pending(self._take(self._total_bytes), chunk_bytes, np.ones(count, np.bool_))
        self._pending[key] = pending
        return pending


def _fresh(nbytes: int) -> NDArray[np.uint8]:
    return np.empty(nbytes, np.uint8)
