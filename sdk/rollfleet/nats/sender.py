"""What the learner sends: weights and control, in order, behind its back.

Of versions that wait, only the newest goes out: nobody is helped by one that is already old. A control message goes out
after the version that it asks for.
"""

import asyncio
import threading

from rollfleet.errors import MessageTooLarge
from rollfleet.nats.link import Link
from rollfleet.weights.layout import Snapshot
from rollfleet.wire.weight_chunks import manifest_of, split
from rollfleet_api.messages import MAX_MESSAGE_BYTES, Control, LearnerPhase, pack
from rollfleet_api.subjects import WeightSubjects

WINDOW_BYTES = 8 << 20

Version = tuple[int, Snapshot]


class LearnerSender:
    """Sends on the link's thread what other threads put in.

    Args:
        link: The learner's connection.
        session: The learner's.
    """

    def __init__(self, link: Link, session: int) -> None:
        self._link, self._session = link, session
        self._lock = threading.Lock()
        self._weights: dict[int | None, Version] = {}  # what waits: for one worker, or (None) for all
        self._newest: dict[int | None, Version] = {}  # what went out last; kept, should NATS lose it
        self._control: Control | None = None
        self._last_control: Control | None = None
        self._spent: list[Snapshot] = []
        self._idle = threading.Event()
        self._idle.set()
        self._filled = asyncio.Event()

    def weights(self, version: int, snapshot: Snapshot, workers: frozenset[int] | None = None) -> None:
        """Send this version, to all workers or to some; one that still waits for the same is never sent."""
        with self._lock:
            before = self._held()
            if workers is None:
                self._weights.clear()  # what waits for some is old now
            self._weights |= dict.fromkeys([None] if workers is None else workers, (version, snapshot))
            self._note_spent(before)
            self._idle.clear()
        self._wake()

    def control(self, control: Control) -> None:
        """Send this control message; one that still waits is never sent."""
        with self._lock:
            self._control = control
            self._idle.clear()
        self._wake()

    def send_again(self) -> None:
        """NATS has lost what was stored: send the newest weights and the newest control message once more."""
        with self._lock:
            self._weights = self._newest | self._weights
            self._control = self._control or self._last_control
            self._idle.clear()
        self._wake()

    @property
    def says_the_end(self) -> bool:
        """Whether what was said last, sent or not, is that the job is complete."""
        last = self._control or self._last_control
        return last is not None and last.phase is LearnerPhase.COMPLETE

    def spent(self) -> list[Snapshot]:
        """Snapshots that will not be sent any more; each once."""
        with self._lock:
            spent, self._spent = self._spent, []
        return spent

    def flush(self, *, timeout_s: float) -> bool:
        """Wait until all is sent; False: it was not, in time."""
        return self._idle.wait(timeout_s)

    async def run(self) -> None:
        """Send until cancelled. NATS being away is waited for.

        Raises:
            MessageTooLarge: Of weights with so many parameters that their list is over what one message may have.
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
                        await self._send_weights(sending, version, snapshot, self._link.subjects.weights_of(worker))
                    if control:
                        sending.create_task(self._link.store(self._link.subjects.control, pack(control)))

    def _begin_to_send(self) -> "tuple[dict[int | None, Version], Control | None]":
        before = self._held()
        weights, self._weights = self._weights, {}
        control, self._control = self._control, None
        self._last_control = control or self._last_control
        if None in weights:
            self._newest.clear()
        self._newest |= weights
        self._note_spent(before)
        return weights, control

    def _held(self) -> dict[int, Snapshot]:
        return {id(snapshot): snapshot for _, snapshot in (*self._weights.values(), *self._newest.values())}

    def _note_spent(self, before: dict[int, Snapshot]) -> None:
        self._spent += [before[each] for each in before.keys() - self._held().keys()]

    def _wake(self) -> None:
        self._link.soon(self._filled.set)

    async def _send_weights(
        self, sending: asyncio.TaskGroup, version: int, snapshot: Snapshot, place: WeightSubjects
    ) -> None:
        data = memoryview(snapshot.data.numpy().data)
        limit = self._link.max_payload_bytes
        manifest = manifest_of(self._session, version, snapshot.parameters, data, max_chunk_bytes=limit)
        window = asyncio.Semaphore(max(1, WINDOW_BYTES // manifest.chunk_bytes))
        for index, chunk in enumerate(split(manifest, data)):
            await window.acquire()
            stored = sending.create_task(self._link.store(place.chunk(version, index), chunk))
            stored.add_done_callback(lambda _: window.release())
        # Last, so that who reads it finds the bytes; should one of them still be on its way, its version tells.
        packed = pack(manifest)
        if len(packed) > (most := min(self._link.max_payload_bytes, MAX_MESSAGE_BYTES)):
            raise MessageTooLarge(len(packed), most, f"the manifest of {len(manifest.parameters):,} parameters")
        sending.create_task(self._link.store(place.manifest, packed))
