"""Writes every batch of a job to disk, as it was sent."""

import logging
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
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
LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Counters since a recorder began.

    Attributes:
        batches: Written.
        frames: In them.
        bytes: Of them.
        missed: Batches that did not come whole, or came faster than they could be written.
        corrupt: Batches that could not be read, and were left out.
    """

    batches: int
    frames: int
    bytes: int
    missed: int
    corrupt: int


class Recorder:
    """Records in the background, until the job ends or it is closed. `Recording` reads what it wrote.

    What went wrong in the background is raised by the next `wait` or `close`.

    Args:
        observer: Sees the batches. It is closed with the recorder.
        folder: Where they go: to what is there of the same job they are added.
        segment_bytes: Of one file, at most; or a single batch.

    Raises:
        JobInvalid: Another recorder writes into the folder, or it holds batches of another job.
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
        """What was written until now."""
        return Recorded(
            batches=self._batches,
            frames=self._frames,
            bytes=self._bytes,
            missed=self._observer.missed,
            corrupt=self._observer.corrupt,
        )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended. False: it has not, in time.

        Raises:
            OSError: The disk is full, or broken.
        """
        try:
            self._done.result(timeout_s)
        except TimeoutError:
            if self._done.done():  # it was raised in the background
                raise
            return False
        return True

    def close(self) -> None:
        """Write what has come, and leave. Closing twice is fine.

        Raises:
            OSError: The disk is full, or broken.
        """
        self._stop.set()
        self._thread.join()
        self._observer.close()
        self._done.result()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
                assembled = self._observer.receive(0.0 if stopping else LOOK_EVERY_S)
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
            return  # its worker waits for room: the recorder before us had it already
        self._writer.write(identity, session=meta.session, round=meta.round, message=message)
        self._batches += 1
        self._frames += meta.frames
        self._bytes += message.nbytes


def _newest_of_each_worker(folder: Path) -> dict[int, tuple[Identity, int]]:
    """What was recorded last of each worker: its identity and its checksum."""

    def pass_over(damaged: RecordingDamaged) -> None:
        log.warning("%s", damaged)

    records = (record for file in segments_in(folder) for record in scan(file, pass_over))
    return {record.identity.worker: (record.identity, record.checksum) for record in records}
