"""Versions of the weights on NATS: their message, and a worker's newest version.

A version is one message of the codec: its bytes, and their description as meta. The learner broadcasts its chunks, and
then control that asks for it: what has not come by then was lost, and the worker asks for it.
"""

import logging
import math
import operator
import threading
import time
from contextlib import suppress
from functools import partial

import torch
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from rollfleet.errors import MessageCorrupt, MessageTooLarge, RollfleetError, WeightMismatch, WireError
from rollfleet.nats.link import Link
from rollfleet.schemes import Layout
from rollfleet.transports.worker_side import Weights
from rollfleet.weights.layout import Snapshot
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.chunks import CHUNK_BYTES, Assembler, Received, peek, piece_of
from rollfleet.wire.codec import Buffer, Encoded, Key, decode, encode, meta_of
from rollfleet_api.job import EvaluationSpec
from rollfleet_api.messages import Control, MessageInvalid, pack, unpack
from rollfleet_api.subjects import ALL
from rollfleet_api.transfers import VersionMeta, Want

log = logging.getLogger(__name__)

MAX_PENDING = 2  # versions that come at the same time: from two learners, or a broadcast and what was asked for
WINDOW_CHUNKS = 16  # that are asked for at once, or broadcast ahead of most workers
CREDIT_CHUNKS = 2 * WINDOW_CHUNKS  # that NATS holds for a slow worker: far below what it cuts a connection for
PROGRESS_CHUNKS = WINDOW_CHUNKS // 4  # between two reports of a large version's progress
LOST_S = 5.0  # without a chunk: the learner was away when it was asked
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


class NatsWeightsInbox:
    """Follows a job's weights. The newest version wins: one that was overtaken on its way is dropped.

    NATS never holds more than a credit of chunks for a worker: a slow one misses some of a broadcast, and
    asks for them.

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
        self._receiver = f"evaluation-{worker}" if evaluation else str(worker)
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
        self._control: Control | None = None
        self._asked_s = -math.inf  # since when requested chunks may be on their way; -inf: none are
        self._broadcast: Subscription | None = None
        self._credit = 0  # messages that may come on it before it is renewed

    def newest(self) -> Weights | None:
        """Return the newest complete version; None: none has come yet.

        Raises:
            WeightMismatch: The newest version does not fit this policy.
        """
        if self._mismatch:
            raise self._mismatch
        return self._newest

    async def start(self, control: Control | None) -> None:
        """Receive versions from now on, and ask for the one that control asks for."""
        subject = self._link.subjects.weights_of(self._receiver)
        await self._link.client.subscribe(subject, cb=self._on_requested, pending_bytes_limit=0, pending_msgs_limit=0)
        await self._renew()
        self._link.on_reconnect(self._ask_again)
        self.follow(control)

    def follow(self, control: Control | None) -> None:
        """Ask for the version that control asks for, unless it is here, or on its way."""
        if control and self._control and control.session > self._control.session:
            self._asked_s = -math.inf  # of a learner that is gone
        self._control = control
        if self._lacks() and time.monotonic() - self._asked_s >= LOST_S:
            self._link.begin(self._ask())

    def _lacks(self) -> bool:
        if self._control is None or self._mismatch:
            return False
        if self._evaluation:
            version = self._control.version
            return version > self._version and self._evaluation.worker_of(version) == self._worker
        return self._control.version_for(self._worker) > self._version

    async def _ask(self) -> None:
        """Ask for the next missing chunks of the newest version."""
        self._asked_s = time.monotonic()
        version = max(self._assembler.pending, default=0)
        send, room, start = list[tuple[int, int]](), WINDOW_CHUNKS, 0
        if pending := self._assembler.pending.get(version):
            while room > 0 and start < pending.count:
                first, end = pending.missing_from(start)
                if first < (end := min(end, first + room)):
                    send.append((first, end))
                room, start = room - (end - first), max(end, start + 1)
        await self._want(Want(version=version, send=tuple(send) or ((0, WINDOW_CHUNKS),)))

    async def _want(self, want: Want) -> None:
        await self._link.publish(self._link.subjects.wants(self._receiver), pack(want))

    async def _ask_again(self) -> None:
        self._asked_s = -math.inf
        self.follow(self._control)

    async def _renew(self) -> None:
        """Let NATS send another credit of broadcast chunks."""
        before, subject = self._broadcast, self._link.subjects.weights_of(ALL)
        self._broadcast = await self._link.client.subscribe(
            subject, cb=self._on_broadcast, pending_bytes_limit=0, pending_msgs_limit=0
        )
        await self._broadcast.unsubscribe(limit=CREDIT_CHUNKS)
        self._credit = CREDIT_CHUNKS // 2
        if before:
            with suppress(NatsError, OSError):  # a cut, or a link that takes longer than nats-py waits
                await before.drain()  # type: ignore[no-untyped-call]

    async def _on_broadcast(self, message: Msg) -> None:
        self._credit -= 1
        if not self._credit:
            self._link.begin(self._renew())
        await self._on_chunk(message.data)

    async def _on_requested(self, message: Msg) -> None:
        if message.data:
            await self._on_chunk(message.data)
        else:  # all that was asked for was sent
            await self._ask_again()

    async def _on_chunk(self, chunk: Received) -> None:
        if self._asked_s > -math.inf:
            self._asked_s = time.monotonic()
        pending = self._assembler.pending.get(version := self._add(chunk))
        if pending and pending.count > WINDOW_CHUNKS and pending.received % PROGRESS_CHUNKS == 0:
            await self._want(Want(version=version, chunks=pending.received))

    def _add(self, chunk: Received) -> int:
        """Add a chunk. Returns the version that it belongs to; 0: it is of no use."""
        spec = self._evaluation
        try:
            header = peek(chunk)
            version = _version(header.key)
            if self._mismatch or version <= self._version or (spec and spec.worker_of(version) != self._worker):
                return 0
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
