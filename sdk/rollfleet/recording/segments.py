"""Batches on disk: append-only files, each bounded in size and readable by itself.

One segment, all numbers little-endian:

```
offset  bytes
0       4      magic b"RLFS"
4       4      u32  format version
8       8      u64  length D of the description
16      8      u64  xxh3_64 of the description
24      D      description: JSON {"recording": "...", "job": {...}}: the recorder's run, and the job at that time
...            records, one after the other
```

One record:

```
0       4      magic b"RLFR"
4       4      u32  xxh32 of the 48 bytes that follow
8       4      u32  worker
12      2      u16  incarnation
14      2      u16  process
16      8      u64  sequence
24      8      u64  the learner's session that asked for the batch
32      8      u64  the batch's round; 0 in mode Async
40      8      u64  length N of the message
48      8      u64  xxh3_64 of the message
56      N      the message, as it was sent (see `codec`)
```

A crash leaves at most the last record of a file incomplete. The next writer begins another file.
"""

import fcntl
import json
import logging
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from rollfleet.errors import JobInvalid, RecordingDamaged
from rollfleet.wire.batch_chunks import Identity
from rollfleet.wire.codec import empty_buffer
from rollfleet_api.job import CollectorJob

log = logging.getLogger(__name__)

SUFFIX = ".segment"

_SEGMENT_MAGIC, _RECORD_MAGIC = b"RLFS", b"RLFR"
_VERSION = 1
_SEGMENT = struct.Struct("<4sIQQ")
_LEAD = struct.Struct("<4sI")
_FIELDS = struct.Struct("<IHHQQQQQ")
_RECORD_BYTES = _LEAD.size + _FIELDS.size

OnDamage = Callable[[RecordingDamaged], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of a segment, without its message.

    Attributes:
        identity: Identity of the batch.
        session: The learner's session that asked for the batch.
        round: The batch's round; 0 in mode Async.
        file: The segment.
        offset: Offset of the record in the file, in bytes.
        nbytes: Size of the message.
        checksum: Checksum of the message, xxh3 (64 bit).
    """

    identity: Identity
    session: int
    round: int
    file: Path
    offset: int
    nbytes: int
    checksum: int

    @property
    def end(self) -> int:
        """Offset of the next record."""
        return self.offset + _RECORD_BYTES + self.nbytes

    def read(self) -> npt.NDArray[np.uint8]:
        """Read the message into new memory, uint8 `[nbytes]`, writable. The caller owns it.

        Raises:
            RecordingDamaged: The bytes differ from those that were written.
        """
        buffer = empty_buffer(self.nbytes)
        with self.file.open("rb") as file:
            file.seek(self.offset + _RECORD_BYTES)
            read = file.readinto(buffer.data)
        if read != self.nbytes or xxhash.xxh3_64_intdigest(buffer.data) != self.checksum:
            raise RecordingDamaged(self.file, self.offset, "its message was changed after it was written")
        return buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A segment's description.

    Attributes:
        recording: Unique id of the recorder's run.
        job: The job.
    """

    recording: str
    job: CollectorJob


class SegmentWriter:
    """Appends records to segments in a folder. It locks the folder: no other recorder can write there.

    A record survives this process's end once `write` returns. A segment survives the machine's end once it is full or
    closed.

    Args:
        folder: The folder of the segments; it is created if it does not exist.
        description: The description of each segment.
        segment_bytes: Size of a segment at most; a single larger record has its own.

    Example:
        >>> writer = SegmentWriter(folder, description, segment_bytes=1 << 28)  # doctest: +SKIP
        >>> writer.write(identity, session=1, round=0, message=message)  # doctest: +SKIP
        >>> writer.close()  # doctest: +SKIP

    Raises:
        JobInvalid: Another recorder writes into the folder, or it holds batches of another job.
    """

    def __init__(self, folder: Path, description: Description, *, segment_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._segment_bytes = folder, segment_bytes
        self._file: int | None = None
        self._size = self._records = 0
        self._folder_file = os.open(folder, os.O_RDONLY)
        try:
            self._lock()
            existing = segments_in(folder)
            self._check_job(existing, description.job.key)
        except BaseException:
            os.close(self._folder_file)
            raise
        self._next = 1 + max((int(file.stem) for file in existing), default=-1)
        text = json.dumps({"recording": description.recording, "job": description.job.dump()}).encode()
        self._head = _SEGMENT.pack(_SEGMENT_MAGIC, _VERSION, len(text), xxhash.xxh3_64_intdigest(text)) + text

    def write(self, identity: Identity, *, session: int, round: int, message: npt.NDArray[np.uint8]) -> None:
        """Append a message.

        Raises:
            OSError: The disk is full or broken. Earlier records stay.
        """
        checksum = xxhash.xxh3_64_intdigest(message.data)
        of = (identity.worker, identity.incarnation, identity.process, identity.sequence)
        fields = _FIELDS.pack(*of, session, round, message.nbytes, checksum)
        head = _LEAD.pack(_RECORD_MAGIC, xxhash.xxh32_intdigest(fields)) + fields
        nbytes = len(head) + message.nbytes
        if self._records and self._size + nbytes > self._segment_bytes:
            self._close_segment()
        file = self._open_segment() if self._file is None else self._file
        self._append(file, memoryview(head), message.data)
        self._size += nbytes
        self._records += 1

    def close(self) -> None:
        """Flush everything to the disk. Closing twice is harmless."""
        if self._folder_file >= 0:
            try:
                self._close_segment()
            finally:
                os.close(self._folder_file)
                self._folder_file = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._folder_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobInvalid(f"another recorder writes into {self._folder}; name another folder") from None

    def _check_job(self, existing: list[Path], key: str) -> None:
        for file in reversed(existing):
            try:
                other = describe(file).job.key
            except RecordingDamaged:
                continue
            if other != key:
                raise JobInvalid(f"{self._folder} holds batches of {other}, not of {key}; name another folder")
            return

    def _open_segment(self) -> int:
        path = self._folder / f"{self._next:08}{SUFFIX}"
        begun = path.with_name(f"{path.name}.begun")  # a segment without its head would count as damaged
        self._file = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._next += 1
        self._size = self._records = 0
        self._append(self._file, memoryview(self._head))
        os.rename(begun, path)
        self._size = len(self._head)
        return self._file

    def _close_segment(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                os.fsync(file)
            finally:
                os.close(file)
            os.fsync(self._folder_file)

    def _append(self, file: int, *parts: memoryview) -> None:
        for part in parts:
            while part.nbytes:
                part = part[os.write(file, part) :]


def segments_in(folder: Path) -> list[Path]:
    """Return the segments in a folder, the oldest first."""
    return sorted(file for file in folder.glob(f"*{SUFFIX}") if file.stem.isdecimal())


def describe(file: Path) -> Description:
    """Read a segment's description.

    Raises:
        RecordingDamaged: It cannot be read.
    """
    with _mapped(file) as data:
        return _description(file, data)[0]


def scan(file: Path, on_damage: OnDamage) -> Iterator[Record]:
    """Iterate over the records of a segment without reading their messages.

    Args:
        file: The segment.
        on_damage: Called where a record should begin and does not. If it returns, the scan continues at the next
            record.
    """
    with _mapped(file) as data:
        try:
            offset = _description(file, data)[1]
        except RecordingDamaged as damaged:
            on_damage(damaged)
            offset = _next_record(data, 0)
        while offset < len(data):
            record = _record_at(file, data, offset)
            if record and record.end <= len(data):
                yield record
                offset = record.end
            elif record or len(data) - offset < _RECORD_BYTES:
                log.info("%s ends at byte %d in the middle of a record, which is skipped", file, offset)
                return
            else:
                on_damage(RecordingDamaged(file, offset, "no record begins here"))
                offset = _next_record(data, offset + 1)


@contextmanager
def _mapped(file: Path) -> Iterator[mmap.mmap | bytes]:
    with file.open("rb") as opened:
        if not os.fstat(opened.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _description(file: Path, data: mmap.mmap | bytes) -> tuple[Description, int]:
    """Read the description, and the offset of the first record."""
    if len(data) < _SEGMENT.size:
        raise RecordingDamaged(file, 0, f"{len(data)} bytes are too few for a segment")
    magic, version, nbytes, checksum = _SEGMENT.unpack_from(data)
    if magic != _SEGMENT_MAGIC:
        raise RecordingDamaged(file, 0, f"it begins with {magic!r}, and a segment with {_SEGMENT_MAGIC!r}")
    if version != _VERSION:
        raise RecordingDamaged(file, 0, f"it has format {version}; this rollfleet reads format {_VERSION}")
    end = _SEGMENT.size + nbytes
    text = data[_SEGMENT.size : end]
    if len(text) < nbytes or xxhash.xxh3_64_intdigest(text) != checksum:
        raise RecordingDamaged(file, 0, "its description is cut, or was changed after it was written")
    try:
        parsed: dict[str, Any] = json.loads(text)
        return Description(recording=str(parsed["recording"]), job=CollectorJob.model_validate(parsed["job"])), end
    except (ValueError, KeyError, TypeError) as error:  # pydantic's is a ValueError
        raise RecordingDamaged(file, 0, f"its description is invalid: {error}") from error


def _record_at(file: Path, data: mmap.mmap | bytes, offset: int) -> Record | None:
    """Read a record's head; None: no record begins here."""
    head = data[offset : offset + _RECORD_BYTES]
    if len(head) < _RECORD_BYTES:
        return None
    magic, checksum = _LEAD.unpack_from(head)
    if magic != _RECORD_MAGIC or xxhash.xxh32_intdigest(head[_LEAD.size :]) != checksum:
        return None
    worker, incarnation, process, sequence, session, round_, nbytes, of_message = _FIELDS.unpack_from(head, _LEAD.size)
    return Record(
        identity=Identity(worker=worker, incarnation=incarnation, sequence=sequence, process=process),
        session=session,
        round=round_,
        file=file,
        offset=offset,
        nbytes=nbytes,
        checksum=of_message,
    )


def _next_record(data: mmap.mmap | bytes, offset: int) -> int:
    """Find the offset of the next record, or the end."""
    found = data.find(_RECORD_MAGIC, offset)
    while found >= 0 and _record_at(Path(), data, found) is None:
        found = data.find(_RECORD_MAGIC, found + 1)
    return len(data) if found < 0 else found
