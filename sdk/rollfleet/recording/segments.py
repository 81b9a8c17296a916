"""Batches on disk: files of safetensors, each written as a whole, and readable by itself.

The tensor `n` of a file is the message of its batch `n`, uint8, as it was sent: folded, compressed, and with a checksum
(see `wire.fragment_message`). The file's metadata are texts: `rollfleet`, the
format's number; `recorder`, an id of the recorder's run; `job`, JSON; `batches`, a JSON list with identity, meta and
size of each batch.
"""

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rollfleet.data.batch import Fragment, to_batch
from rollfleet.errors import JobInvalid, MessageCorrupt, RecordingDamaged, WireError
from rollfleet.wire.chunks import Identity
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Count
from rollfleet_api.transfers import BatchMeta

if TYPE_CHECKING:
    from tensordict import TensorDict

SUFFIX, FORMAT = ".safetensors", "2"
SEGMENT_BATCHES = 1000  # at most: a file's header is read as a whole
OPEN_S = 5.0  # a batch that has arrived is on disk after this time at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A batch in a file's metadata.

    Attributes:
        identity: Identity of the batch.
        meta: Session, round, version and frames.
        nbytes: Size of its message.
    """

    identity: Identity
    meta: BatchMeta
    nbytes: Count


_ENTRIES: Final = TypeAdapter(list[Entry])


@dataclass(frozen=True, slots=True)
class Record:
    """A batch of a segment. Its tensors are not read yet."""

    entry: Entry
    _file: Path
    _messages: Any  # the open file
    _name: str

    def read(self) -> tuple[Fragment, "TensorDict"]:
        """Read the fragment into new memory, and expand it to its batch.

        Raises:
            RecordingDamaged: The file has no such fragment.
        """
        try:
            message: Tensor = self._messages.get_tensor(self._name)
            if message.dtype is not torch.uint8:
                raise MessageCorrupt(f"its batch {self._name} is {message.dtype}")
            _, fragment = unpack_fragment(message.numpy())
            return fragment, to_batch(fragment)
        except (SafetensorError, WireError) as error:
            raise RecordingDamaged(self._file, str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A file of a recording.

    Attributes:
        recorder: Unique id of the recorder's run.
        job: The job at that time.
        records: The batches, in the order of their arrival.
    """

    recorder: str
    job: CollectorJob
    records: list[Record]

    @classmethod
    def open(cls, file: Path) -> "Segment":
        """Read a file's header.

        Raises:
            RecordingDamaged: It is not a file of a recording.
        """
        try:
            opened: Any = safe_open(file, "pt")
            metadata = opened.metadata() or {}
            if (written := metadata.get("rollfleet")) != FORMAT:
                raise RecordingDamaged(file, f"it has format {written} of a recording, this rollfleet reads {FORMAT}")
            entries = _ENTRIES.validate_json(metadata["batches"])
            records = [Record(entry, file, opened, str(number)) for number, entry in enumerate(entries)]
            job = CollectorJob.model_validate_json(metadata["job"])
            return cls(recorder=metadata["recorder"], job=job, records=records)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:  # pydantic's is a ValueError
            raise RecordingDamaged(file, f"{error!r:.200}") from error


class SegmentWriter:
    """Writes batches into a folder, which it makes and locks: no other recorder can write there.

    A file has at most `segment_bytes` of batches; a single larger batch has its own.

    A file is written when it is full, when its first batch has waited for `OPEN_S`, and by `close`. Written files
    survive the end of this process and of the machine; the batches that wait for the next one do not.

    Raises:
        JobInvalid: Another recorder writes into the folder, or it holds batches of another job.
        RecordingDamaged: The newest file there is not of a recording.
    """

    def __init__(self, folder: Path, job: CollectorJob, *, segment_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._segment_bytes = folder, segment_bytes
        recorded = job.model_copy(update={"status": None})
        self._metadata = {"rollfleet": FORMAT, "recorder": uuid4().hex, "job": json.dumps(recorded.dump())}
        self._messages: dict[str, Tensor] = {}
        self._batches: list[dict[str, Any]] = []
        self._bytes, self._since_s = 0, 0.0
        self._folder_file = os.open(folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(self._folder_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobInvalid(f"another recorder writes into {folder}; name another folder") from None
            existing = segments_in(folder)
            if existing and (other := Segment.open(existing[-1]).job.key) != job.key:
                raise JobInvalid(f"{folder} holds batches of {other}, not of {job.key}; name another folder")
        except BaseException:
            os.close(self._folder_file)
            raise
        self._next = 1 + int(existing[-1].stem) if existing else 0

    def write(self, identity: Identity, meta: BatchMeta, message: NDArray[np.uint8]) -> None:
        """Add a batch; its message must not change any more.

        Raises:
            OSError: The disk is full or broken. Earlier files stay.
        """
        full = self._bytes + message.nbytes > self._segment_bytes or len(self._batches) >= SEGMENT_BATCHES
        if self._batches and full:
            self.flush()
        if not self._batches:
            self._since_s = time.monotonic()
        self._messages[str(len(self._batches))] = torch.from_numpy(message)
        self._batches.append({"identity": asdict(identity), "meta": asdict(meta), "nbytes": message.nbytes})
        self._bytes += message.nbytes

    def flush_old(self) -> None:
        """Write the waiting batches if the first has waited for `OPEN_S`."""
        if self._batches and time.monotonic() - self._since_s >= OPEN_S:
            self.flush()

    def flush(self) -> None:
        """Write the waiting batches into a file of their own.

        Raises:
            OSError: The disk is full or broken.
        """
        if not self._batches:
            return
        data = save(self._messages, self._metadata | {"batches": json.dumps(self._batches)})
        path = self._folder / f"{self._next:08}{SUFFIX}"
        unfinished = path.with_suffix(".unfinished")
        try:
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # that of a full disk names no file
            raise OSError(error.errno, error.strerror, str(unfinished)) from error
        unfinished.rename(path)
        os.fsync(self._folder_file)
        self._next += 1
        self._messages, self._batches, self._bytes = {}, [], 0

    def close(self) -> None:
        """Write the waiting batches, and unlock the folder."""
        try:
            self.flush()
        finally:
            os.close(self._folder_file)


def segments_in(folder: Path) -> list[Path]:
    """Return the segments in a folder, the oldest first."""
    return sorted(file for file in folder.glob(f"*{SUFFIX}") if file.stem.isdecimal())
