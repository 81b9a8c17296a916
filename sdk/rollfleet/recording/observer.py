"""Receives every batch that a job's workers send, live, and takes none from its learner.

It subscribes to the subjects that workers publish to: it gets a copy, and no one waits for it.
"""

import logging
import threading
from collections import deque

from nats.aio.msg import Msg

from rollfleet.errors import JobEnded, WireError
from rollfleet.learner.duplicates import DuplicateFilter
from rollfleet.nats.job_source import FollowedJob
from rollfleet.nats.link import Link
from rollfleet.wire.chunks import Assembled, Assembler, Identity
from rollfleet.wire.codec import LARGEST_BATCH_BYTES
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase
from rollfleet_api.subjects import OFFER, Ask

log = logging.getLogger(__name__)

SUBSCRIBE_TIMEOUT_S = 15.0


class Observer:
    """Every batch of a job as it arrives, from one worker each.

    It receives batches from the moment that it connects, including those that the learner drops as too old. A reader
    that is slower than the workers loses batches: those that do not fit into its memory.

    Args:
        link: A connection as the job's learner. It is closed with the observer.
        memory_bytes: Bound of the batches that wait for the reader; a single larger batch is kept.

    Attributes:
        corrupt: Number of batches that could not be read.
    """

    def __init__(self, link: Link, job: CollectorJob, *, memory_bytes: int) -> None:
        self.job = job
        self._followed = FollowedJob(link, job, self._follow, self._end)
        self._link, self._memory_bytes = link, memory_bytes
        self._assembler = Assembler(Identity.of, Identity.overtakes, max_message_bytes=LARGEST_BATCH_BYTES)
        self._follow(job)
        self._duplicates = DuplicateFilter()
        self._waiting: deque[Assembled[Identity]] = deque()
        self._waiting_bytes = 0
        self.corrupt = self._session = 0
        self._ended: JobEnded | None = None
        self._changed = threading.Condition()
        link.call(self._subscribe(), timeout_s=SUBSCRIBE_TIMEOUT_S)
        link.on_reconnect(self._recover)

    def receive(self, timeout_s: float) -> Assembled[Identity] | None:
        """Return the next batch as it was sent; None: none came in time.

        Raises:
            JobEnded: The job has ended, or the observer is closed, and every batch that came was returned.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended, timeout_s)
            if self._waiting:
                assembled = self._waiting.popleft()
                self._waiting_bytes -= assembled.buffer.nbytes
                return assembled
            if ended := self._ended or self._followed.ended():
                raise ended
        return None

    @property
    def missed(self) -> int:
        """Batches that arrived incomplete or did not fit, though later ones of the same incarnation arrived."""
        with self._changed:
            return self._duplicates.missed

    def count_corrupt(self, error: Exception) -> None:
        """Count a batch that could not be read."""
        self.corrupt += 1
        log.warning("skipped a batch that could not be read: %s", error)

    def close(self) -> None:
        """Disconnect: no more batches come. Closing twice is harmless."""
        self._link.close()
        self._end(JobEnded("the observer is closed"))

    # --- on the link's thread ---

    async def _subscribe(self) -> None:
        client, subjects = self._link.client, self._link.subjects
        # A received message counts until it is handled. At least one must always fit.
        pending_bytes = self._memory_bytes + client.max_payload
        await client.subscribe(subjects.batches, cb=self._on_chunk, pending_bytes_limit=pending_bytes)
        await self._followed.subscribe()
        await self._link.listen(subjects.control, Control, self._obey)
        await self._link.ask(Ask.CONTROL)
        await self._link.flush()

    async def _recover(self) -> None:
        """Recover after a cut: it may have lost an edit of the job, or its end."""
        await self._link.ask(Ask.JOB)
        await self._link.ask(Ask.CONTROL)

    async def _on_chunk(self, message: Msg) -> None:
        if message.subject.endswith(OFFER):
            return
        try:
            assembled = self._assembler.add(message.data)
        except WireError as error:
            self.count_corrupt(error)
            return
        if assembled:
            self._offer(assembled)

    def _offer(self, assembled: Assembled[Identity]) -> None:
        """Keep a batch if it is new and fits. A worker sends again what the learner asks for again."""
        identity, nbytes = assembled.key, assembled.buffer.nbytes
        with self._changed:
            if self._waiting and self._waiting_bytes + nbytes > self._memory_bytes:
                return  # it counts as missed as soon as its successor arrives
            of = (identity.worker, identity.incarnation, identity.sequence)
            if self._duplicates.add(*of, process=identity.process):
                self._waiting.append(assembled)
                self._waiting_bytes += nbytes
                self._changed.notify_all()

    def _follow(self, job: CollectorJob) -> None:
        self._assembler.max_pending = (job.spec.delivery.max_batches_ahead + 2) * job.spec.workers

    def _obey(self, control: Control) -> None:
        self._session = max(self._session, control.session)
        if control.phase is LearnerPhase.COMPLETE and control.session == self._session:  # of none that was replaced
            self._end(JobEnded(f"the job {self.job.key} is complete"))

    def _end(self, error: JobEnded) -> None:
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()
