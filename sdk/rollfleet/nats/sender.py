"""Sends the learner's weights and control, in order, in the background.

Of the versions that wait, only the newest is sent. A control message is sent after the version that it asks for.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping

from rollfleet.nats.client import Pieces
from rollfleet.nats.link import Link
from rollfleet.nats.state import read_bytes, read_state
from rollfleet.nats.weights import key_of, pack_version, version_in
from rollfleet.weights.layout import Snapshot
from rollfleet.wire.chunks import cut_message
from rollfleet_api.messages import Control, pack

log = logging.getLogger(__name__)

WINDOW_CHUNKS = 8  # on their way to NATS

Version = tuple[int, Snapshot]


class LearnerSender:
    """Sends weights and control of other threads on the link's thread.

    Attributes:
        newest: The newest control message, sent or not; None: none.
    """

    def __init__(self, link: Link, session: int) -> None:
        self._link, self._session = link, session
        self._lock = threading.Lock()
        self._versions: dict[int | None, Version] = {}  # the newest, by worker, in their order; None: for all
        self.newest: Control | None = None
        self._sent: tuple[Mapping[int | None, Version], Control | None] = {}, None  # or being sent
        self._idle = threading.Event()
        self._idle.set()
        self._filled = asyncio.Event()

    def weights(self, version: int, snapshot: Snapshot, workers: frozenset[int] | None = None) -> None:
        """Send a version to these workers; None: to all. It replaces a version that waits for the same workers."""
        with self._lock:  # versions for single workers are older than one for all
            others = {of: kept for of, kept in self._versions.items() if workers is not None and of not in workers}
            self._versions = others | dict.fromkeys([None] if workers is None else workers, (version, snapshot))
            self._wake()

    def control(self, control: Control) -> None:
        """Send a control message. It replaces one that waits."""
        with self._lock:
            self.newest = control
            self._wake()

    async def restore(self) -> None:
        """Send the newest weights and control message again if NATS has lost them."""
        link, control, versions = self._link, self.newest, self._versions
        if not (control or versions) or not self._idle.is_set():
            return
        stored = await read_state(link, link.subjects.control, Control)
        lost = control is not None and stored != control
        if versions and not lost:
            worker, (version, _) = next(iter(versions.items()))  # if the first that was stored is there, the rest is
            first = await read_bytes(link, link.subjects.weights_of(worker, version, 0))
            lost = first is None or version_in(first) < version
        with self._lock:
            is_newest = self.newest is control and self._versions is versions and self._idle.is_set()
            if not lost or not is_newest or (stored is not None and stored.session > self._session):
                return
            self._sent = {}, None
            self._wake()
        log.warning("%s: NATS has lost messages that it had confirmed; sending them again", link.subjects.key)

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
                    weights, control = self._newer()
                    if not weights and control is None:
                        self._idle.set()
                        break
                async with asyncio.TaskGroup() as sending:  # in this order, without waiting for each answer
                    for worker, (version, snapshot) in weights.items():
                        await self._send_weights(sending, worker, version, snapshot)
                    if control:
                        sending.create_task(self._link.store(self._link.subjects.control, pack(control)))

    def _newer(self) -> tuple[Mapping[int | None, Version], Control | None]:
        """Return what has not been sent. From now on it counts as sent."""
        (versions, control), self._sent = self._sent, (self._versions, self.newest)
        newer = {worker: each for worker, each in self._versions.items() if versions.get(worker) is not each}
        return newer, None if self.newest is control else self.newest

    def _wake(self) -> None:
        self._idle.clear()
        self._link.soon(self._filled.set)

    async def _send_weights(
        self, sending: asyncio.TaskGroup, worker: int | None, version: int, snapshot: Snapshot
    ) -> None:
        encoded, limit = pack_version(version, snapshot), self._link.client.max_payload
        window = asyncio.Semaphore(WINDOW_CHUNKS)
        for index, chunk in enumerate(cut_message(key_of(version), encoded.parts, encoded.nbytes, limit)):
            await window.acquire()
            subject = self._link.subjects.weights_of(worker, version, index)
            sending.create_task(self._link.store(subject, Pieces(*chunk))).add_done_callback(lambda _: window.release())
