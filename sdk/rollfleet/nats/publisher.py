"""What a worker sends: its batches one after the other, cut into chunks, each published until NATS has it."""

import asyncio
import logging
from concurrent.futures import Future
from contextlib import suppress

from nats.js.errors import APIError

from rollfleet.data.batch import Fragment
from rollfleet.errors import JobEnded, JobInvalid
from rollfleet.nats.client import Pieces
from rollfleet.nats.link import Link
from rollfleet.wire.batch_chunks import PREFIX_BYTES, Identity, cut
from rollfleet.wire.codec import Encoded
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.job import CollectorJob, Mode
from rollfleet_api.messages import BatchMeta, Lease, pack

log = logging.getLogger(__name__)

WINDOW_BYTES = 8 << 20
HEADER_BYTES = 512  # of a message's NATS headers, which count towards the server's limit
FULL_WAIT_S = 0.25  # how long to wait for word of room in the queue before asking again, with a whole chunk
BEHIND_WAIT_S = 4.0  # the same, at most, where the learner tells this worker as soon as there is
TELL_AFTER_S = 30.0  # of waiting for room that the learner alone cannot make
_FULL = 10077  # JetStream's error code: too many bytes or messages in the stream, or no room on its disk
_NO_RESOURCES = (10002, 10023, 10028, 10047)  # the account's limits, the server's memory or disk
_BEHIND = "maximum messages per subject"  # the one reason to wait that is nobody's fault
_MI = 1 << 20


class BatchPublisher:
    """Sends the batches of one life of a worker. Everything here runs on the link's thread.

    Args:
        link: The worker's connection.
        worker: Index of the worker.

    Attributes:
        complete: The job is complete: what has found no room by now never will.
    """

    def __init__(self, link: Link, worker: int) -> None:
        self.complete = False
        self._link, self._worker = link, worker
        self._job: CollectorJob | None = None
        self._room = asyncio.Event()
        self._publishing = asyncio.Lock()
        self._losses = 0
        self._last: tuple[Fragment, BatchMeta, Identity] | None = None

    def follow(self, job: CollectorJob) -> None:
        """What the job says now."""
        self._job = job

    def look_again(self) -> None:
        """There may be room now."""
        self._room.set()

    async def begin(self, lease: Lease) -> None:
        """Say that a life of this worker has begun, behind whatever those before it sent."""
        subject = self._link.subjects.began(self._worker)
        await self._store(subject, pack(lease), f"{self._worker}.{lease.incarnation}.began")

    async def publish(self, fragment: Fragment, meta: BatchMeta, identity: Identity, admitted: "Future[None]") -> None:
        """Publish a batch, after those before it: one that overtakes would make its predecessor look lost.

        Raises:
            JobInvalid: The job leaves no room for batches of this size.
            JobEnded: The job is complete, and nobody will take this batch.
            APIError: NATS refuses it, and waiting would not help.
        """
        async with self._publishing:
            losses = -1
            while losses != self._losses:  # else what went before is gone with what NATS has lost
                losses = self._losses
                await self._publish(fragment, meta, identity, admitted)
            self._last = (fragment, meta, identity)

    def lost(self, round_: int) -> None:
        """NATS has lost all that was stored. Send again what a learner in round `round_` may be waiting for.

        In async mode (round 0) nobody waits for one batch; what was lost shows as a gap. In sync mode the fragment is
        as it was sent: the worker touches it again when the next round is opened.
        """
        self._losses += 1
        if self._last and not self._publishing.locked() and self._last[1].round == round_ > 0:
            log.warning("worker %d: NATS has lost its batch of round %d, which is sent again", self._worker, round_)
            self._link.begin(self.publish(*self._last, Future()))

    async def _publish(self, fragment: Fragment, meta: BatchMeta, identity: Identity, admitted: "Future[None]") -> None:
        encoded = pack_fragment(fragment, meta)
        max_chunk_bytes = min(1 << 20, self._link.max_payload_bytes - HEADER_BYTES)
        self._check_room(encoded, meta.frames, max_chunk_bytes)
        chunks = (
            (index, Pieces(*each)) for index, each in enumerate(cut(encoded, identity, max_chunk_bytes=max_chunk_bytes))
        )
        await self._publish_chunk(identity, *next(chunks))  # once this one is in, the others have room too
        if not admitted.done():
            admitted.set_result(None)
        window = asyncio.Semaphore(max(1, WINDOW_BYTES // max_chunk_bytes))
        try:
            async with asyncio.TaskGroup() as group:
                for index, chunk in chunks:
                    await window.acquire()
                    publishing = group.create_task(self._publish_chunk(identity, index, chunk))
                    publishing.add_done_callback(lambda _: window.release())
        except BaseExceptionGroup as failed:  # the worker asks what it was, not how many of its chunks it hit
            raise failed.exceptions[0] from failed

    def _check_room(self, encoded: Encoded, frames: int, max_chunk_bytes: int) -> None:
        """A batch of each worker must fit at once: halves of several would wait for each other for ever."""
        if self._job is None:
            return
        spec = self._job.spec
        workers, delivery = spec.workers, spec.delivery
        if spec.mode is Mode.SYNC:  # before a round is shared out among more workers, fewer have larger shares
            workers = min(workers, -(-spec.collect.frames_per_batch // max(1, frames)))
        chunks = -(-encoded.nbytes // (max_chunk_bytes - PREFIX_BYTES))
        needed = workers * (encoded.nbytes + chunks * HEADER_BYTES)
        if needed > delivery.limit_bytes:
            raise JobInvalid(
                f"a batch has {encoded.nbytes:,} bytes, and one of each of {workers} workers must fit into "
                f"`delivery.maxBytes: {delivery.max_bytes}`, {delivery.limit_bytes:,} bytes: write "
                f"`delivery.maxBytes: {-(-needed // _MI)}Mi` or more, or less than "
                f"`collect.framesPerBatch: {self._job.spec.collect.frames_per_batch}`"
            )

    async def _publish_chunk(self, identity: Identity, index: int, chunk: Pieces) -> None:
        message_id = f"{identity.worker}.{identity.incarnation}.{identity.sequence}.{index}"
        await self._store(self._link.subjects.batch_chunk(self._worker, index), chunk, message_id)

    async def _store(self, subject: str, data: bytes | Pieces, message_id: str) -> None:
        """Store a message once, however often it is asked for; as long as it takes for there to be room."""
        waited_s, wait_s = 0.0, FULL_WAIT_S
        while True:
            self._room.clear()
            try:
                await self._link.store(subject, data, {"Nats-Msg-Id": message_id})
            except APIError as error:
                if error.err_code != _FULL and error.err_code not in _NO_RESOURCES:
                    raise
                if _BEHIND not in (error.description or ""):
                    waited_s, wait_s = self._tell(waited_s, error), FULL_WAIT_S
                if self.complete:
                    raise JobEnded("the job is complete: nobody will take this batch") from error
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._room.wait(), wait_s)
                wait_s = min(2 * wait_s, BEHIND_WAIT_S)
            else:
                return

    def _tell(self, waited_s: float, error: APIError) -> float:
        """Say so once in a while; returns how long it has been since."""
        if waited_s >= TELL_AFTER_S:
            log.warning("worker %d has waited %g s for room for a batch: %s", self._worker, waited_s, error.description)
            return 0.0
        return waited_s + FULL_WAIT_S
