"""Writes every batch of a job to disk, as it was sent."""

import logging
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import uuid4

import xxhash

from rollfleet.errors import JobEnded, RecordingDamaged, WireError
from rollfleet.recording.observer import Observer
from rollfleet.recording.segments import Description, SegmentWriter, scan, segments_in
from rollfleet.wire.batch_chunks import Assembled, Identity
from rollfleet.wire.fragment_message import unpack_fragment

log = logging.getLogger(__name__)

SEGMENT_BYTES = 256 << 20
RECEIVE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Counters of a recorder since its start.

    Attributes:
        batches: Batches written.
        frames: Frames in them.
        bytes: Their size.
        missed: Batches that arrived incomplete or faster than they could be written.
        corrupt: Batches that could not be read, and were skipped.
    """

    batches: int
    frames: int
    bytes: int
    missed: int
    corrupt: int


class Recorder:
    """Records in the background, until the job ends or it is closed. `Recording` reads the files.

    The next `wait` or `close` raises an error that happened in the background.

    Args:
        observer: Receives the batches. It is closed with the recorder.
        folder: The recording's folder. Batches are added to an earlier recording of the same job.
        segment_bytes: Size of one file at most; a single larger batch has its own.

    Raises:
        JobInvalid: Another recorder writes into the folder, or it holds batches of another job.

    Example:
        >>> with rollfleet.record("cartpole", "recording") as recorder:  # doctest: +SKIP
        ...     recorder.wait(timeout_s=60)
        ...     print(recorder.counts().batches)
    """

    def __init__(self, observer: Observer, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._observer = observer
        description = Description(recording=uuid4().hex, job=observer.job)
        self._writer = SegmentWriter(folder, description, segment_bytes=segment_bytes)
        self._before = _newest_of_each_worker(folder)
        self._batches = self._frames = self._bytes = 0
        self._stop = threading.Event()
        self._done: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="rollfleet-record", daemon=True)
        self._thread.start()

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
        try:
            self._done.result(timeout_s)
        except TimeoutError:
            if self._done.done():  # raised in the background
                raise
            return False
        return True

    def close(self) -> None:
        """Write the batches that have arrived, and stop. Closing twice is harmless.

        Raises:
            OSError: The disk is full or broken.
        """
        self._stop.set()
        self._thread.join()
        self._observer.close()
        self._done.result()

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _run(self) -> None:
        try:
            try:
                self._record()
            finally:
                self._writer.close()
        except BaseException as error:  # raised at the next call
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    def _record(self) -> None:
        while True:
            stopping = self._stop.is_set()
            try:
                assembled = self._observer.receive(0.0 if stopping else RECEIVE_TIMEOUT_S)
            except JobEnded:
                return
            if assembled:
                self._write(assembled)
            elif stopping:
                return

    def _write(self, assembled: Assembled) -> None:
        identity, message = assembled.identity, assembled.buffer
        try:
            meta, _ = unpack_fragment(message)
        except WireError as error:
            self._observer.count_corrupt(error)
            return
        if self._before.pop(identity.worker, None) == (identity, xxhash.xxh3_64_intdigest(message.data)):
            return  # its worker resends it while the queue is full: the previous recorder has written it
        self._writer.write(identity, session=meta.session, round=meta.round, message=message)
        self._batches += 1
        self._frames += meta.frames
        self._bytes += message.nbytes


def _newest_of_each_worker(folder: Path) -> dict[int, tuple[Identity, int]]:
    """Identity and checksum of each worker's last recorded batch."""

    def skip(damaged: RecordingDamaged) -> None:
        log.warning("%s", damaged)

    records = (record for file in segments_in(folder) for record in scan(file, skip))
    return {record.identity.worker: (record.identity, record.checksum) for record in records}
