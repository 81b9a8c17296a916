"""Sends the learner's weights and control, in order, in the background, and keeps the newest of both for who asks.

A version is broadcast once: of a large one, a window of chunks at a time, until about all workers have them. A worker
that lacks chunks asks for them. Of the versions that wait, only the newest is sent. Control follows the version that it
asks for; it is sent again once a second.
"""

import asyncio
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from rollfleet.nats.client import Pieces
from rollfleet.nats.link import Link, unpack_or_skip
from rollfleet.nats.weights import WINDOW_CHUNKS, key_of, pack_version
from rollfleet.weights.layout import Snapshot
from rollfleet.wire.chunks import Chunk, cut_message
from rollfleet.wire.codec import Encoded
from rollfleet_api.messages import Control, LearnerStatus, pack
from rollfleet_api.subjects import ALL, Ask
from rollfleet_api.transfers import Want

REPEAT_S = 1.0
JOINING_S = 0.05  # workers that ask for the same version within this time get one broadcast
CONNECTED_S = 0.05  # between two looks whether the connection is back
FEW = 2  # receivers that get copies of their own, instead of a broadcast
SERVER_CHUNKS = 4  # sent before the server must have processed those before
SLOW_S = 0.25  # that the faster half of the workers waits for one of the others
LOST_S = 3.0  # that the slower half waits for one of the faster ones

RECEIVER: Final = re.compile(r"(evaluation-)?[0-9]{1,5}")  # any worker may invent others
Runs: TypeAlias = tuple[tuple[int, int], ...]
FIRST: Final[Runs] = ((0, WINDOW_CHUNKS),)
NONE: Final[Runs] = ((0, 0),)


@dataclass(slots=True, eq=False)
class _Version:
    """A version that is kept: its number, and its weights."""

    number: int
    snapshot: Snapshot
    encoded: Encoded | None = None
    chunks: list[Chunk] = field(default_factory=list)
    cut_for: int = 0

    def cut(self, max_payload: int) -> list[Chunk]:
        """Return its chunks, for a server with this limit.

        Raises:
            MessageTooLarge: The weights have too many parameters.
        """
        if self.cut_for != max_payload:
            self.encoded = self.encoded or pack_version(self.number, self.snapshot)  # its checksum takes a while
            parts, nbytes = self.encoded.parts, self.encoded.nbytes
            self.chunks, self.cut_for = [*cut_message(key_of(self.number), parts, nbytes, max_payload)], max_payload
        return self.chunks


class LearnerSender:
    """Sends weights and control of other threads on the link's thread.

    Args:
        link: The learner's connection.
        present: Returns the number of workers that have reported, and take part.
        status: Returns the learner's heartbeat.

    Attributes:
        newest: The newest control message, sent or not; None: none.
    """

    def __init__(self, link: Link, *, present: Callable[[], int], status: Callable[[], LearnerStatus]) -> None:
        self._link, self._present, self._status = link, present, status
        self._lock = threading.Lock()
        self._versions: dict[str, _Version] = {}  # the newest, by receiver, in their order
        self._number = 0  # of the newest control message
        self.newest: Control | None = None
        self._sent: tuple[Mapping[str, _Version], Control | None] = {}, None  # or being sent
        self._said: Control | None = None  # the last control message that was sent: its version was, too
        self._idle = threading.Event()
        self._idle.set()
        self._filled = asyncio.Event()
        self._came: dict[str, tuple[int, int]] = {}  # what each receiver has: a version, and its first chunks
        self._progressed = asyncio.Event()
        self._joining: set[str] = set()  # receivers that want all of the version for all
        self._serving: set[str] = set()  # receivers whose last request is not carried out

    async def subscribe(self) -> None:
        """Answer those who ask from now on."""
        await self._link.client.subscribe(self._link.subjects.wants("*"), cb=self._on_want)
        await self._link.on_ask(Ask.CONTROL, self.send_again)

    def weights(self, number: int, snapshot: Snapshot, workers: frozenset[int] | None = None) -> None:
        """Send a version to these workers; None: to all. It replaces a version that waits for the same workers."""
        version, receivers = _Version(number, snapshot), {ALL} if workers is None else {*map(str, workers)}
        with self._lock:  # versions for single workers are older than one for all
            others = {} if workers is None else {of: each for of, each in self._versions.items() if of not in receivers}
            self._versions = others | dict.fromkeys(receivers, version)
            self._wake()

    def control(self, control: Control) -> None:
        """Send a control message. It replaces one that waits."""
        with self._lock:
            self._number += 1
            self.newest = replace(control, number=self._number)
            self._wake()

    def flush(self, *, timeout_s: float) -> bool:
        """Wait until everything is sent. Returns False after the timeout."""
        return self._idle.wait(timeout_s)

    async def run(self) -> None:
        """Send until cancelled. Control is sent again now and then: a cut may have lost it.

        Raises:
            MessageTooLarge: The weights have too many parameters.
        """
        while True:
            try:
                async with asyncio.timeout(REPEAT_S):
                    await self._filled.wait()
            except TimeoutError:
                await self.send_again()
            else:
                self._filled.clear()
                await self._send_newer()

    async def send_again(self) -> None:
        """Send the last control message again, with the newest counts."""
        await self._send_control(self._said)

    async def _send_newer(self) -> None:
        while True:
            while not self._link.client.is_connected:  # noqa: ASYNC110 (the client has no event for it)
                await asyncio.sleep(CONNECTED_S)
            with self._lock:
                (versions, control), self._sent = self._sent, (self._versions, self.newest)
                sending = self._sent
            for receiver, version in sending[0].items():
                if versions.get(receiver) is not version:
                    await self._send_version(receiver, version)
            if sending[1] is not control:
                await self._send_control(sending[1])
            with self._lock:
                if self._versions is sending[0] and self.newest is sending[1]:
                    self._idle.set()
                    return

    async def _send_control(self, control: Control | None) -> None:
        if control is None:
            return
        self._said = control
        now = self._status()
        control = replace(
            control,
            newest=now.version,
            frames=now.frames,
            batches=now.batches,
            next_incarnation=now.next_incarnation,
        )
        await self._link.publish(self._link.subjects.control, pack(control))

    def _wake(self) -> None:
        self._idle.clear()
        self._link.soon(self._filled.set)

    # --- weights ---

    async def _send_version(self, receiver: str, version: _Version, runs: Runs = ()) -> None:
        """Send these runs of chunks, or all."""
        chunks, subject = version.cut(self._link.client.max_payload), self._link.subjects.weights_of(receiver)
        processed, followers = deque[asyncio.Task[None]](), self._present()
        for start, end in runs or ((0, len(chunks)),):
            for index in range(start, min(end, len(chunks))):
                if receiver == ALL and index >= WINDOW_CHUNKS:
                    followers = await self._wait_for(followers, (version.number, index - WINDOW_CHUNKS))
                await self._link.publish(subject, Pieces(*chunks[index]))
                if index % SERVER_CHUNKS == SERVER_CHUNKS - 1:
                    processed.append(asyncio.ensure_future(self._processed()))
                    if len(processed) > 2:
                        await processed.popleft()
        for each in processed:
            await each

    async def _processed(self) -> None:
        """Wait until the server has processed what was sent before."""
        with suppress(NatsError, TimeoutError, OSError):  # of a cut: who lacks chunks asks
            await self._link.client.flush()

    async def _wait_for(self, followers: int, needed: tuple[int, int]) -> int:
        """Wait until this many workers have these chunks of a version. Returns how many are fast enough."""
        while (ready := sum(came >= needed for came in self._came.values())) < followers:
            self._progressed.clear()
            try:
                async with asyncio.timeout(SLOW_S if 2 * ready >= followers else LOST_S):
                    await self._progressed.wait()
            except TimeoutError:
                return ready
        return followers

    async def _on_want(self, message: Msg) -> None:
        receiver = message.subject.rpartition(".")[2]
        want = unpack_or_skip(Want, message.data, message.subject)
        kept = [self._versions[of] for of in (receiver, ALL) if of in self._versions]
        if want is None or not kept or not RECEIVER.fullmatch(receiver):
            return
        self._came[receiver] = (want.version, want.chunks)
        self._progressed.set()
        if not want.send or receiver in self._serving:
            return
        newest = max(kept, key=lambda version: version.number)
        self._serving.add(receiver)
        if newest is self._versions.get(ALL) and want.version != newest.number:
            self._joining.add(receiver)
            if len(self._joining) == 1:
                self._link.begin(self._serve_joining())
        else:
            self._link.begin(self._serve(receiver, newest, want.send if want.version == newest.number else FIRST))

    async def _serve_joining(self) -> None:
        """Send the newest version to those that have nothing of it: a broadcast, or to few of them copies."""
        await asyncio.sleep(JOINING_S)
        receivers, self._joining = self._joining, set()
        version = self._versions[ALL]
        few = len(receivers) <= FEW
        if not few:
            await self._send_version(ALL, version)
        for receiver in receivers:
            self._link.begin(self._serve(receiver, version, FIRST if few else NONE))

    async def _serve(self, receiver: str, version: _Version, runs: Runs) -> None:
        """Send a receiver chunks, and an empty message: from then on it knows what was lost."""
        try:
            await self._send_version(receiver, version, runs)
        finally:
            self._serving.discard(receiver)
        await self._link.publish(self._link.subjects.weights_of(receiver), b"")
