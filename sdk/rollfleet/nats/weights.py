"""Versions of the weights on NATS: their message, their chunks that are stored, and a worker's newest version.

A version is one message of the codec: its bytes, and their description as meta. Its chunks are broadcast and stored in
one step, in one of two slots. A slot whose learner died while it sent has no whole version, and the other one does.
"""

import logging
import operator
import threading
from dataclasses import replace
from functools import partial

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
from rollfleet_api.job import EvaluationSpec
from rollfleet_api.messages import Control, MessageInvalid, VersionMeta, pack, unpack
from rollfleet_api.subjects import WEIGHT_SLOTS

log = logging.getLogger(__name__)

MAX_PENDING = 2  # versions that come at the same time: from two learners, or live and from storage
MOST_META_BYTES = CHUNK_BYTES // 2  # so that the first chunk of a large version has all of it
_BYTES: Key = ("weights",)
_version = partial(int.from_bytes, byteorder="little")  # of a key in chunks


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
    try:
        meta = _description(first)
    except WireError:
        return False
    # The head has the checksum of the whole message.
    head = pack_version(meta.version, replace(snapshot, flags=meta.flags)).parts[0]
    return piece_of(first)[: head.nbytes] == head


class NatsWeightsInbox:
    """Follows a job's weights. The newest version wins: one that was overtaken on its way is dropped.

    Args:
        link: The worker's connection.
        worker: Index of the worker: some versions are for it alone.
        layout: The layout of the worker's policy.
        changed: Notified when a newer version is complete, or when one does not fit.
        evaluation: Of an evaluation worker, which follows those versions for all workers that are its own.
    """

    def __init__(
        self,
        link: Link,
        worker: int,
        layout: Layout,
        changed: threading.Condition,
        evaluation: EvaluationSpec | None = None,
    ) -> None:
        self._link, self._worker, self._layout, self._changed = link, worker, layout, changed
        self._evaluation = evaluation
        self._of = (None,) if evaluation else (None, worker)
        # The pool lends a version's memory again once a newer version has replaced it and it is not being loaded.
        self._assembler = Assembler(
            _version,
            operator.gt,
            max_message_bytes=layout.total_bytes + CHUNK_BYTES,
            max_pending=MAX_PENDING,
            allocate=BufferPool(MAX_PENDING).take,
        )
        self._newest: Weights | None = None
        self._version = 0  # its version
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
        for worker in self._of:
            await self._link.client.subscribe(
                self._link.subjects.weights_of(worker), cb=self._on_message, pending_bytes_limit=0, pending_msgs_limit=0
            )
        self._link.on_reconnect(self.catch_up)
        await insist(self.catch_up)

    async def catch_up(self, control: Control | None = None) -> None:
        """Read what is missing of newer versions from the state stream, if control is not given or asks for one."""
        if control and control.version_for(self._of[-1]) <= self._version:
            return
        for worker in self._of:
            firsts = [await self._read(worker, slot, 0) for slot in range(WEIGHT_SLOTS)]
            for first in sorted((each for each in firsts if each), key=version_in, reverse=True):
                pending = self._assembler.pending.get(version := self._add(first))
                for index in pending.missing() if pending else ():
                    chunk = await self._read(worker, version, index)
                    if chunk is None or self._add(chunk) != version:  # not stored yet, or overtaken
                        break

    async def _read(self, worker: int | None, version: int, index: int) -> Received | None:
        return await read_bytes(self._link, self._link.subjects.weights_of(worker, version, index))

    async def _on_message(self, message: Msg) -> None:
        self._add(message.data)

    def _add(self, chunk: Received) -> int:
        """Add a chunk. Returns the version that it belongs to; 0: it is of no use."""
        version = version_in(chunk)
        spec = self._evaluation
        if self._mismatch or version <= self._version or (spec and spec.worker_of(version) != self._worker):
            return 0
        try:
            header = peek(chunk)
            if header.total_bytes > self._assembler.max_message_bytes and not header.index:
                self._layout.check(_description(chunk).parameters)  # names the parameter, and takes no memory
            if (assembled := self._assembler.add(chunk)) is None:
                return version
            meta, data = unpack_version(assembled.buffer)
            self._layout.check(meta.parameters)
            if meta.version != version or data.nbytes != self._layout.total_bytes:
                raise MessageCorrupt(f"version {meta.version} of {data.nbytes} bytes comes as version {version}")
            self._newest, self._version = Weights(version=version, data=data.numpy(), flags=meta.flags), version
        except WeightMismatch as error:
            self._mismatch = error
        except WireError as error:
            log.warning("skipped an invalid version of the weights: %s", error)
            return 0
        with self._changed:
            self._changed.notify_all()
        return version


def _description(first: Received) -> VersionMeta:
    return _unpack_meta(meta_of(piece_of(first)))


def _unpack_meta(meta: bytes) -> VersionMeta:
    try:
        return unpack(VersionMeta, meta)
    except MessageInvalid as error:
        raise MessageCorrupt(f"no version of the weights: {error}") from error
