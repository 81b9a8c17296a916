"""Sends the learner's weights and control, in order, in the background.

Of the versions that wait, only the newest is sent. A control message is sent after the version that it asks for.
"""

import asyncio
import logging
import threading

from rollfleet.nats.client import Pieces
from rollfleet.nats.link import Link
from rollfleet.nats.state import read_bytes, read_state
from rollfleet.nats.weights import key_of, pack_version, version_in
from rollfleet.weights.layout import Snapshot
from rollfleet.wire.chunks import CHUNK_BYTES, chunk_count, cut_message
from rollfleet_api.messages import Control, LearnerPhase, pack

log = logging.getLogger(__name__)

WINDOW_BYTES = 8 << 20

Version = tuple[int, Snapshot]


class LearnerSender:
    """Sends weights and control of other threads on the link's thread."""

    def __init__(self, link: Link, session: int) -> None:
        self._link, self._session = link, session
        self._lock = threading.Lock()
        self._weights: dict[int | None, Version] = {}  # waiting, by worker; None: for all
        self._newest: dict[int | None, Version] = {}  # sent last, in this order; kept in case NATS loses it
        self._control: Control | None = None
        self._last_control: Control | None = None  # sent last; kept, too
        self._idle = threading.Event()
        self._idle.set()
        self._filled = asyncio.Event()

    def weights(self, version: int, snapshot: Snapshot, workers: frozenset[int] | None = None) -> None:
        """Send a version to these workers; None: to all. It replaces a version that waits for the same workers."""
        with self._lock:
            if workers is None:
                self._weights.clear()  # versions for single workers are older
            self._weights |= dict.fromkeys([None] if workers is None else workers, (version, snapshot))
            self._idle.clear()
        self._wake()

    def control(self, control: Control) -> None:
        """Send a control message. It replaces one that waits."""
        with self._lock:
            self._control = control
            self._idle.clear()
        self._wake()

    async def restore(self) -> None:
        """Send the newest weights and control message again if NATS has lost them, or came back with older ones.

        It confirms messages before it writes them to its disk: after a power loss the newest ones may be missing.
        """
        control = self._last_control
        if not (control or self._newest) or not self._idle.is_set() or not await self._lacks(control):
            return
        with self._lock:
            if self._last_control is not control or not self._idle.is_set():
                return  # newer ones were sent meanwhile
            self._weights, self._control = dict(self._newest), control
            self._idle.clear()
        log.warning("%s: NATS has lost messages that it had confirmed; sending them again", self._link.subjects.key)
        self._wake()

    async def _lacks(self, control: Control | None) -> bool:
        """Return whether NATS has no such control message, or older weights. A later learner's are newer."""
        stored = await read_state(self._link, self._link.subjects.control, Control)
        if stored is not None and stored.session > self._session:
            return False
        if control is not None and stored != control:
            return True
        if not self._newest:
            return False
        # What was stored first is lost first: if it is there, the rest is.
        worker, (version, _) = next(iter(self._newest.items()))
        first = await read_bytes(self._link, self._link.subjects.weights_chunk(worker, version, 0))
        return first is None or version_in(first) < version

    @property
    def progress(self) -> tuple[int, int, int]:
        """The progress of the newest control message, sent or not."""
        last = self._control or self._last_control
        return last.progress if last else (self._session, 0, 0)

    @property
    def ends_job(self) -> bool:
        """Whether the newest control message, sent or not, says that the job is complete."""
        last = self._control or self._last_control
        return last is not None and last.phase is LearnerPhase.COMPLETE

    def flush(self, *, timeout_s: float) -> bool:
        """Wait until everything is sent. Returns False after the timeout."""
        return self._idle.wait(timeout_s)

    async def run(self) -> None:
        """Send until cancelled. Waits while NATS is away.

        Raises:
            MessageTooLarge: The weights have too many parameters.
        """
        while True:
            await self._filled.wait()
            self._filled.clear()
            while True:
                with self._lock:
                    weights, control = self._begin_to_send()
                    if not weights and control is None:
                        self._idle.set()
                        break
                async with asyncio.TaskGroup() as sending:  # in this order, without waiting for each answer
                    for worker, (version, snapshot) in weights.items():
                        await self._send_weights(sending, worker, version, snapshot)
                    if control:
                        sending.create_task(self._link.store(self._link.subjects.control, pack(control)))

    def _begin_to_send(self) -> "tuple[dict[int | None, Version], Control | None]":
        weights, self._weights = self._weights, {}
        control, self._control = self._control, None
        self._last_control = control or self._last_control
        older = {each: kept for each, kept in self._newest.items() if not weights.keys() & {None, each}}
        self._newest = older | weights
        return weights, control

    def _wake(self) -> None:
        self._link.soon(self._filled.set)

    async def _send_weights(
        self, sending: asyncio.TaskGroup, worker: int | None, version: int, snapshot: Snapshot
    ) -> None:
        encoded, limit = pack_version(version, snapshot), min(CHUNK_BYTES, self._link.client.max_payload)
        count = chunk_count(encoded.nbytes, limit)
        window = asyncio.Semaphore(max(1, WINDOW_BYTES // limit))
        for index, chunk in enumerate(cut_message(key_of(version), encoded.parts, encoded.nbytes, count)):
            await window.acquire()
            subject = self._link.subjects.weights_chunk(worker, version, index)
            sending.create_task(self._link.store(subject, Pieces(*chunk))).add_done_callback(lambda _: window.release())
