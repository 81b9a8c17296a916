"""Writes every batch of a job to disk, beside its learner."""

from concurrent import futures
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from rollfleet.arguments import path_of, whole_number
from rollfleet.errors import ConnectionFailed, JobEnded, WireError
from rollfleet.nats.job_source import read_job
from rollfleet.nats.opening import open_link
from rollfleet.recording.observer import Observer
from rollfleet.recording.segments import SegmentWriter
from rollfleet.system.background import in_background
from rollfleet.wire.chunks import Assembled, Identity
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import credentials_secret
from rollfleet_api.permissions import Role

MEMORY_BYTES = 256 << 20
SEGMENT_BYTES = 64 << 20
RECEIVE_TIMEOUT_S = 0.5


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

    See `record`, which makes it. It closes its observer.

    The next `wait` or `close` raises an error that happened in the background.

    Attributes:
        job: The job, as it was at the start.

    Raises:
        JobInvalid: Another recorder writes into the folder, or it holds batches of another job.
        OSError: The folder cannot be written.
    """

    def __init__(self, observer: Observer, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._observer, self.job = observer, observer.job
        self._writer = SegmentWriter(folder, self.job, segment_bytes=segment_bytes)
        self._batches = self._frames = self._bytes = 0
        self._done = in_background(self._run, "rollfleet-record")

    def counts(self) -> Recorded:
        """Return the counters."""
        return Recorded(
            batches=self._batches,
            frames=self._frames,
            bytes=self._bytes,
            missed=self._observer.missed,
            corrupt=self._observer.corrupt,
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
        self._observer.close()  # no more arrive while those of before are written
        self._done.result()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        with closing(self._writer), suppress(JobEnded):
            while True:
                if assembled := self._observer.receive(RECEIVE_TIMEOUT_S):
                    self._write(assembled)
                self._writer.flush_old()

    def _write(self, assembled: Assembled[Identity]) -> None:
        try:
            meta, _ = unpack_fragment(assembled.buffer)
        except WireError as error:
            self._observer.count_corrupt(error)
            return
        self._writer.write(assembled.key, meta, assembled.buffer)
        self._batches += 1
        self._frames += meta.frames
        self._bytes += assembled.buffer.nbytes


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
    try:
        subjects = link.subjects
        if not link.call(link.may_subscribe(subjects.batches), timeout_s=timeout_s):
            raise ConnectionFailed(
                f"these credentials may not read the batches of {subjects.key}: use its learner's, which on a cluster "
                f"are in the Secret `{credentials_secret(subjects.job, Role.LEARNER)}`"
            )
        known = link.call(read_job(link, timeout_s=timeout_s))
        return Recorder(Observer(link, known, memory_bytes=memory_bytes), folder, segment_bytes=segment_bytes)
    except BaseException:
        link.close()
        raise
