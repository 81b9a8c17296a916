"""Sends a worker's batches one after the other, cut into chunks; each chunk is published until NATS confirms it."""

import asyncio
import logging
from concurrent.futures import Future
from contextlib import ExitStack

from rollfleet.data.batch import Fragment
from rollfleet.errors import JobInvalid
from rollfleet.nats.client import Pieces
from rollfleet.nats.link import Link
from rollfleet.wire.chunks import CHUNK_BYTES, Identity, chunk_count, cut_message
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.job import CollectorJob, Mode
from rollfleet_api.messages import BatchMeta, Lease, pack

log = logging.getLogger(__name__)

WINDOW_BYTES = 8 << 20
HEADER_BYTES = 512  # of a message's NATS headers, which count towards the server's limit
_MI = 1 << 20


class BatchPublisher:
    """Sends the batches of one incarnation of a worker. Everything here runs on the link's thread.

    Args:
        link: The worker's connection.
        worker: Index of the worker.
    """

    def __init__(self, link: Link, worker: int) -> None:
        self._link, self._worker = link, worker
        self._job: CollectorJob | None = None
        self._publishing = asyncio.Lock()
        self._losses = 0
        self._last: tuple[Fragment, BatchMeta, Identity] | None = None

    def follow(self, job: CollectorJob) -> None:
        """Use this version of the job."""
        self._job = job

    async def begin(self, lease: Lease) -> None:
        """Report that an incarnation has begun, after all messages of earlier incarnations."""
        await self._link.store(self._link.subjects.began(self._worker), pack(lease))

    async def publish(self, fragment: Fragment, meta: BatchMeta, identity: Identity, admitted: "Future[None]") -> None:
        """Publish a batch after the earlier ones. Overtaking would make its predecessor look lost.

        The fragment must not change until this returns. `admitted` gets its result when the queue has accepted its
        first chunk.

        Raises:
            JobInvalid: The job's queue is too small for batches of this size.
            APIError: NATS refused it, and waiting would not help.
        """
        async with self._publishing:
            losses, chunks = self._losses, await self._publish(fragment, meta, identity, admitted)
            while chunks > 1 and losses != self._losses:  # NATS was away meanwhile, and may have lost earlier chunks
                losses, chunks = self._losses, await self._publish(fragment, meta, identity, admitted, again=True)
            self._last = (fragment, meta, identity)

    def send_again(self, round_: int) -> None:
        """Send the fragment of round `round_` again, from its start: NATS was away, and may have lost it.

        The learner drops repetitions. The fragment has not changed: the worker writes to it again only when the next
        round opens. In async mode (round 0) no learner waits for one batch: a lost one shows as a gap.
        """
        if not round_:
            return
        self._losses += 1
        if self._last and not self._publishing.locked() and self._last[1].round == round_:
            log.debug("worker %d sends its batch of round %d again", self._worker, round_)
            self._link.begin(self.publish(*self._last, Future()))

    async def _publish(
        self, fragment: Fragment, meta: BatchMeta, identity: Identity, admitted: "Future[None]", *, again: bool = False
    ) -> int:
        """Publish a batch; `again`: NATS may have some of its chunks. Returns the number of its chunks."""
        encoded, subjects = pack_fragment(fragment, meta), self._link.subjects
        max_chunk_bytes = min(CHUNK_BYTES, self._link.client.max_payload - HEADER_BYTES)
        count = chunk_count(encoded.nbytes, max_chunk_bytes)
        self._check_capacity(encoded.nbytes, count, meta.frames)
        cut = cut_message(identity.key, encoded.parts, encoded.nbytes, count)
        chunks = ((index, Pieces(*each)) for index, each in enumerate(cut))
        # Once the first one is stored, the others fit, too. A chunk that NATS may have already holds none of them up:
        # its own copy may take its place in the queue, until the learner has the whole batch.
        others_may_follow = asyncio.Event()

        async def publish_first(index: int, chunk: Pieces) -> None:
            await self._link.store(subjects.batch_chunk(self._worker, index), chunk, others_may_follow.set)
            if not admitted.done():
                admitted.set_result(None)
            others_may_follow.set()

        window = asyncio.Semaphore(max(1, WINDOW_BYTES // max_chunk_bytes))

        async def publish_next(index: int, chunk: Pieces) -> None:
            with ExitStack() as place:  # in the window: left once, by the first retry or at the end
                place.callback(window.release)
                await self._link.store(subjects.batch_chunk(self._worker, index), chunk, place.close)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(publish_first(*next(chunks)))
                if not again:
                    await others_may_follow.wait()
                for index, chunk in chunks:
                    await window.acquire()
                    group.create_task(publish_next(index, chunk))
        except BaseExceptionGroup as failed:  # one cause, whichever chunks it hit
            raise failed.exceptions[0] from failed
        return count

    def _check_capacity(self, nbytes: int, chunks: int, frames: int) -> None:
        """Check that one batch of each worker fits at once: halves of several would wait for each other forever."""
        if self._job is None:
            return
        spec = self._job.spec
        workers, delivery = spec.workers, spec.delivery
        if spec.mode is Mode.SYNC:  # while fewer workers are present, each collects a larger fragment
            workers = min(workers, -(-spec.collect.frames_per_batch // max(1, frames)))
        needed = workers * (nbytes + chunks * HEADER_BYTES)
        if needed > delivery.limit_bytes:
            raise JobInvalid(
                f"a batch has {nbytes:,} bytes, and one of each of {workers} workers must fit into "
                f"`delivery.maxBytes: {delivery.max_bytes}`, {delivery.limit_bytes:,} bytes: write "
                f"`delivery.maxBytes: {-(-needed // _MI)}Mi` or more, or less than "
                f"`collect.framesPerBatch: {self._job.spec.collect.frames_per_batch}`"
            )
