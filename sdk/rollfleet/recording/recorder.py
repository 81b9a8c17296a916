"""Writes every batch of a job to disk, beside its learner."""

import logging
import threading
from concurrent import futures
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from rollfleet.arguments import path_of, whole_number
from rollfleet.errors import ConnectionFailed, JobEnded, MessageCorrupt, Timeout, WireError
from rollfleet.learner.duplicates import DuplicateFilter
from rollfleet.nats.link import Link
from rollfleet.nats.opening import open_link
from rollfleet.nats.presence import JobPresence
from rollfleet.nats.state import read_job, read_state
from rollfleet.recording.segments import SegmentWriter
from rollfleet.system.background import in_background
from rollfleet.wire.chunks import Assembled, Assembler, Identity
from rollfleet.wire.codec import decode
from rollfleet.wire.fragment_message import fragment_of, meta_of
from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import credentials_secret
from rollfleet_api.messages import Control, LearnerPhase
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import BEGAN

log = logging.getLogger(__name__)

MEMORY_BYTES = 256 << 20
SEGMENT_BYTES = 64 << 20
SUBSCRIBE_TIMEOUT_S = 15.0
TAKE_TIMEOUT_S = 0.5
TAKE_AT_ONCE = 16  # chunks: of small batches, the way to the other thread would be the most of their cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Counters of a recorder since its start.

    Attributes:
        batches: Batches written, or about to be.
        bytes: Their size.
        missed: Batches that arrived incomplete or faster than they could be written.
        corrupt: Batches that could not be read, and were skipped.
    """

    batches: int
    frames: int
    bytes: int
    missed: int
    corrupt: int


class Recorder(AbstractContextManager["Recorder"]):
    """Records in the background, until the job ends or it is closed. `Recording` reads the files.

    See `record`, which makes it. It subscribes to the subjects that workers publish to, beside the work queue. So it
    gets a copy of each batch from its connection on, also of those that the learner drops as too old. Received chunks
    wait in nats-py's queue, which drops those that do not fit.

    The next `wait` or `close` raises an error that happened in the background.

    Args:
        link: A connection as the job's learner. It is closed with the recorder.
        job: The job, as it is now.
        writer: Writes the batches. It is closed with the recorder.
        memory_bytes: Bound of the chunks that wait to be written; one always fits.

    Attributes:
        job: The job, as it was at the start.
    """

    def __init__(self, link: Link, job: CollectorJob, writer: SegmentWriter, *, memory_bytes: int) -> None:
        self.job = job
        self._link, self._writer = link, writer
        self._assembler = Assembler(max_message_bytes=job.spec.delivery.limit_bytes)
        self._follow(job)
        self._duplicates = DuplicateFilter()
        self._batches = self._frames = self._bytes = self._corrupt = 0
        self._stop = threading.Event()
        self._chunks = link.call(self._subscribe(memory_bytes), timeout_s=SUBSCRIBE_TIMEOUT_S)
        link.begin(self._watch_job())
        self._done = in_background(self._run, "rollfleet-record")

    def counts(self) -> Recorded:
        """Return the counters."""
        return Recorded(
            batches=self._batches,
            frames=self._frames,
            bytes=self._bytes,
            missed=self._duplicates.missed,
            corrupt=self._corrupt,
        )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended. Returns False after the timeout.

        Raises:
            OSError: The disk is full or broken.
        """
        if not futures.wait([self._done], timeout_s).done:
            return False
        self._done.result()
        return True

    def close(self) -> None:
        """Write the batches that have arrived, and stop. Closing twice is harmless.

        Raises:
            OSError: The disk is full or broken.
        """
        self._stop.set()
        self._done.result()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        with closing(self._link), closing(self._writer):
            while not self._stop.is_set():
                self._take()
            self._link.call(self._chunks.unsubscribe())  # no more arrive while those of before are written
            while self._chunks.pending_msgs:
                self._take()

    def _take(self) -> None:
        """Wait for chunks, and record the batches that they complete."""
        with suppress(Timeout):
            for message in self._link.call(self._next()):
                if not message.subject.endswith(BEGAN):
                    self._add(message.data)
        self._writer.flush_old()

    def _add(self, chunk: bytes) -> None:
        self._assembler.take_given_up()  # they count as missed as soon as their successors arrive
        try:
            if (assembled := self._assembler.add(chunk)) and self._is_new(assembled.identity):
                self._write(assembled)
        except WireError as error:
            self._corrupt += 1
            log.warning("skipped a batch that could not be read: %s", error)

    def _is_new(self, of: Identity) -> bool:
        """Note a batch. Workers resend what the work queue refuses: most batches arrive repeatedly."""
        return self._duplicates.add(of.worker, of.incarnation, of.sequence, process=of.process)

    def _write(self, assembled: Assembled) -> None:
        header, tensors = decode(assembled.buffer)
        meta = meta_of(header)
        fragment_of(meta, tensors)
        if unheld := [key for key, tensor in tensors.items() if tensor.dtype is torch.complex128]:
            raise MessageCorrupt(f"files of safetensors hold no complex128: {unheld[0]}")
        self._writer.write(assembled.identity, meta, tensors)
        self._batches += 1
        self._frames += meta.frames
        self._bytes += assembled.buffer.nbytes

    # --- on the link's thread ---

    async def _subscribe(self, memory_bytes: int) -> Subscription:
        link, subjects = self._link, self._link.subjects
        (subject,) = subjects.batch_subjects
        chunks = await link.client.subscribe(subject, pending_bytes_limit=memory_bytes + link.client.max_payload)
        await link.listen(subjects.spec, CollectorJob, self._follow)
        await link.listen(subjects.control, Control, self._obey)
        await link.flush()
        return chunks

    async def _next(self) -> list[Msg]:
        messages = [await self._chunks.next_msg(TAKE_TIMEOUT_S)]
        while self._chunks.pending_msgs and len(messages) < TAKE_AT_ONCE:
            messages.append(await self._chunks.next_msg())
        return messages

    async def _watch_job(self) -> None:
        """Stop when the job is complete, or was deleted."""
        with suppress(JobEnded):
            await JobPresence(self._link).watch(self._read_control)
        self._stop.set()

    async def _read_control(self) -> None:
        if control := await read_state(self._link, self._link.subjects.control, Control):
            self._obey(control)

    def _follow(self, job: CollectorJob) -> None:
        self._assembler.max_pending = 2 * job.spec.workers + 2
        self._assembler.max_message_bytes = job.spec.delivery.limit_bytes

    def _obey(self, control: Control) -> None:
        if control.phase is LearnerPhase.COMPLETE:
            self._stop.set()


def record(
    job: str | CollectorJob | None = None,
    folder: str | Path = "recording",
    *,
    address: str | None = None,
    credentials: str | Path | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    memory_bytes: int = MEMORY_BYTES,
    timeout_s: float = 60.0,
) -> Recorder:
    """Write every batch of a job to disk, in the background, beside its learner. `Recording` reads them.

    It takes no batch from the learner, and no one waits for it. Missing arguments are found as `rollfleet.connect`
    finds them.

    Args:
        job: Its name, `namespace/name`, or the job itself. None: read from the environment.
        folder: The recording's folder. Batches are added to an earlier recording of the same job.
        address: The NATS server's URL.
        credentials: The NATS credentials file of the job's learner.
        segment_bytes: Size of the batches of one file at most; a single larger batch has its own. A file is written
            when it is full, and 5 s after its first batch at most.
        memory_bytes: Bound of the batches that wait to be written. Batches that do not fit are dropped, and counted as
            `missed`.
        timeout_s: How long to wait for NATS, and for the job.

    Returns:
        A recorder; also a context manager. It ends with the job.

    Raises:
        ConnectionFailed: No server was named, none answered, or it refused the credentials.
        JobInvalid: The name is not valid for a job, another recorder writes into the folder, or it holds batches of
            another job.
        JobNotFound: The job did not appear in time.
        OSError: The folder cannot be written.

    Example:
        >>> with rollfleet.record("cartpole", "recording") as recorder:  # doctest: +SKIP
        ...     recorder.wait(timeout_s=60)
    """
    folder, segment_bytes = path_of(folder, "folder"), whole_number(segment_bytes, "segment_bytes", least=1)
    memory_bytes = whole_number(memory_bytes, "memory_bytes", least=1)
    link = open_link(job, address=address, credentials=credentials, timeout_s=timeout_s)
    with ExitStack() as on_error:
        on_error.callback(link.close)
        subjects = link.subjects
        if not link.call(link.may_subscribe(subjects.batch_subjects[0]), timeout_s=timeout_s):
            raise ConnectionFailed(
                f"these credentials may not read the batches of {subjects.key}: use its learner's, which on a cluster "
                f"are in the Secret `{credentials_secret(subjects.job, Role.LEARNER)}`"
            )
        known = link.call(read_job(link, timeout_s=timeout_s))
        writer = on_error.enter_context(closing(SegmentWriter(folder, known, segment_bytes=segment_bytes)))
        recorder = Recorder(link, known, writer, memory_bytes=memory_bytes)
        on_error.pop_all()
        return recorder
