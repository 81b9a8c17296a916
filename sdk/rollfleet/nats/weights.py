"""Versions of the weights on NATS: their message, their chunks that are stored, and a worker's newest version.

A version is one message of the codec: its bytes, and their description as meta. Its chunks are broadcast and stored in
one step, in one of two slots. A slot whose learner died while it sent has no whole version, and the other one does.
"""

import logging
import operator
import threading
from collections.abc import Callable
from dataclasses import replace

import torch
from nats.aio.msg import Msg

from rollfleet.errors import MessageCorrupt, MessageTooLarge, RollfleetError, WeightMismatch, WireError
from rollfleet.nats.link import Link
from rollfleet.nats.polling import insist
from rollfleet.nats.state import read_bytes
from rollfleet.schemes import Layout
from rollfleet.transports.worker_side import Weights
from rollfleet.weights.layout import Snapshot
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.chunks import CHUNK_BYTES, Assembler, Received, peek, piece_of
from rollfleet.wire.codec import Buffer, Encoded, Key, decode, encode, meta_of
from rollfleet_api.messages import Control, MessageInvalid, VersionMeta, pack, unpack
from rollfleet_api.subjects import WEIGHT_SLOTS

log = logging.getLogger(__name__)

MAX_PENDING = 2  # versions that come at the same time: from two learners, or live and from storage
MOST_META_BYTES = CHUNK_BYTES // 2  # so that the first chunk of a large version has all of it
_BYTES: Key = ("weights",)


def pack_version(version: int, snapshot: Snapshot) -> Encoded:
    """Encode a version. The message points at the snapshot's memory, which must not change until it is sent.

    Raises:
        MessageTooLarge: It has too many parameters.
    """
    meta = pack(VersionMeta(version=version, parameters=snapshot.parameters, flags=snapshot.flags))
    if len(meta) > MOST_META_BYTES:
        raise MessageTooLarge(len(meta), MOST_META_BYTES, f"the description of {len(snapshot.parameters):,} parameters")
    return encode(meta, {_BYTES: snapshot.data})


def unpack_version(buffer: Buffer) -> tuple[VersionMeta, torch.Tensor]:
    """Return a version's description and its bytes, uint8 `[total_bytes]`: a view of `buffer` at a multiple of 64.

    Raises:
        MessageCorrupt: `pack_version` did not make this message.
    """
    meta, tensors = decode(buffer)
    data = tensors.pop(_BYTES, None)
    if data is None or tensors or data.dtype is not torch.uint8 or data.ndim != 1:
        raise MessageCorrupt("no version of the weights")
    return _unpack_meta(meta), data


def key_of(version: int) -> bytes:
    """Return a version's key in chunks."""
    return version.to_bytes(16, "little")


def version_in(chunk: Received) -> int:
    """Return the version that a chunk belongs to; 0: none, which is logged."""
    try:
        return _version(peek(chunk).key)
    except WireError as error:
        log.warning("skipped an invalid chunk of weights: %s", error)
        return 0


def is_of(first: Received, snapshot: Snapshot) -> bool:
    """Whether the version with this first chunk has these weights, whatever its flags are."""
    piece = piece_of(first)
    try:
        meta = _unpack_meta(meta_of(piece))
    except WireError:
        return False
    # The head has the checksum of the whole message.
    head = pack_version(meta.version, replace(snapshot, flags=meta.flags)).parts[0]
    return piece[: head.nbytes] == head


async def read_newest(link: Link) -> Received | None:
    """Return the first chunk of the newest version for all workers that is stored as a whole; None: none is."""
    for version, first in await _first_chunks(link, None):
        last = await read_bytes(link, link.subjects.weights_chunk(None, version, peek(first).count - 1))
        if last and version_in(last) == version:  # chunks are stored in their order
            return first
    return None


class NatsWeightsInbox:
    """Follows a job's weights. The newest version wins: one that was overtaken on its way is dropped.

    Args:
        link: The worker's connection.
        worker: Index of the worker: some versions are for it alone. None: only versions for all workers.
        layout: The layout of the worker's policy.
        changed: Notified when a newer version is complete, or when one does not fit.
        wanted: Returns whether a version is followed; others are passed over.
    """

    def __init__(
        self,
        link: Link,
        worker: int | None,
        layout: Layout,
        changed: threading.Condition,
        *,
        wanted: Callable[[int], bool] = lambda version: True,
    ) -> None:
        self._link, self._worker, self._layout, self._changed, self._wanted = link, worker, layout, changed, wanted
        # The pool lends a version's memory again once a newer version has replaced it and it is not being loaded.
        self._assembler = Assembler(
            _version,
            operator.gt,
            max_message_bytes=layout.total_bytes + CHUNK_BYTES,
            max_pending=MAX_PENDING,
            allocate=BufferPool(MAX_PENDING).take,
        )
        self._newest: Weights | None = None
        self._mismatch: RollfleetError | None = None

    def newest(self) -> Weights | None:
        """Return the newest complete version; None: none has come yet.

        Raises:
            WeightMismatch: The newest version does not fit this policy.
        """
        if self._mismatch:
            raise self._mismatch
        return self._newest

    async def start(self) -> None:
        """Subscribe, and read the newest stored version."""
        for worker in dict.fromkeys((None, self._worker)):
            await self._link.client.subscribe(
                self._link.subjects.weights(worker), cb=self._on_message, pending_bytes_limit=0, pending_msgs_limit=0
            )
        self._link.on_reconnect(self.catch_up)
        await insist(self.catch_up)

    def lacks(self, control: Control) -> bool:
        """Whether a version that was sent before this control message has not come."""
        return self._version < control.version_for(self._worker)

    async def catch_up(self) -> None:
        """Read what is missing of newer versions from the state stream, until one is complete."""
        for worker in dict.fromkeys((None, self._worker)):
            for version, first in await _first_chunks(self._link, worker):
                self._add(first)
                pending = self._assembler.pending.get(version)
                for index in pending.missing() if pending else ():
                    chunk = await read_bytes(self._link, self._link.subjects.weights_chunk(worker, version, index))
                    if chunk is None or self._add(chunk) != version:  # not stored yet, or overtaken
                        break

    @property
    def _version(self) -> int:
        return self._newest.version if self._newest else 0

    async def _on_message(self, message: Msg) -> None:
        self._add(message.data)

    def _add(self, chunk: Received) -> int:
        """Add a chunk. Returns the version that it belongs to; 0: it is of no use."""
        version = version_in(chunk)
        if version <= self._version or not self._wanted(version):
            return 0
        try:
            if not self._check_size(chunk) or (assembled := self._assembler.add(chunk)) is None:
                return version
            meta, data = unpack_version(assembled.buffer)
            self._layout.check(meta.parameters)
            if meta.version != version or data.nbytes != self._layout.total_bytes:
                is_ = f"version {meta.version} of {data.nbytes} bytes"
                raise MessageCorrupt(f"{is_}, and not version {version} of {self._layout.total_bytes}")
            self._newest = Weights(version=version, data=data.numpy(), flags=meta.flags)
        except WeightMismatch as error:
            self._mismatch = error
        except WireError as error:
            log.warning("skipped an invalid version of the weights: %s", error)
            return 0
        with self._changed:
            self._changed.notify_all()
        return version

    def _check_size(self, chunk: Received) -> bool:
        """Return whether a chunk's message is not larger than any of this policy's.

        Raises:
            WeightMismatch: It is, and its parameters are others.
        """
        header, most = peek(chunk), self._layout.total_bytes + CHUNK_BYTES
        if header.total_bytes > most and not header.index:
            self._layout.check(_unpack_meta(meta_of(piece_of(chunk))).parameters)
            raise MessageTooLarge(header.total_bytes, most)
        return header.total_bytes <= most


def _version(key: bytes) -> int:
    return int.from_bytes(key, "little")


def _unpack_meta(meta: bytes) -> VersionMeta:
    try:
        return unpack(VersionMeta, meta)
    except MessageInvalid as error:
        raise MessageCorrupt(f"no version of the weights: {error}") from error


async def _first_chunks(link: Link, worker: int | None) -> list[tuple[int, Received]]:
    """Return the versions that a slot has chunks of, the newest first, and their first chunks."""
    subjects = [link.subjects.weights_chunk(worker, slot, 0) for slot in range(WEIGHT_SLOTS)]
    chunks = [chunk for subject in subjects if (chunk := await read_bytes(link, subject))]
    found = [(version, chunk) for chunk in chunks if (version := version_in(chunk))]
    return sorted(found, key=operator.itemgetter(0), reverse=True)
