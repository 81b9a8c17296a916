"""What a worker tells the learner over their socket: a byte that says what it is, a length, and a message."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rollfleet.errors import MessageCorrupt
from rollfleet_api.messages import MAX_MESSAGE_BYTES, BatchMeta, MessageInvalid, WorkerStatus, pack, unpack

_HEAD = struct.Struct("<BI")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReady:
    """A batch lies in the worker's shared memory of batches.

    Attributes:
        sequence: Its number in its worker's life, from 0.
        start: Where the region begins that it lies in.
        nbytes: Its length.
    """

    sequence: int
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStored:
    """A batch's frames are in the learner's replay buffer, where the worker has put them.

    Attributes:
        sequence: Its number in its worker's life, from 0.
        meta: What the batch says of itself.
        kept: False: it was too old, and is dropped instead.
        episode_returns: Of the last episodes that ended in it.
        episode_lengths: Of the same, in frames.
    """

    sequence: int
    meta: BatchMeta
    kept: bool
    episode_returns: tuple[float, ...]
    episode_lengths: tuple[int, ...]


WorkerMessage = WorkerStatus | BatchReady | BatchStored

_KINDS: dict[int, type[WorkerMessage]] = {1: WorkerStatus, 2: BatchReady, 3: BatchStored}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def encode_message(message: WorkerMessage) -> bytes:
    """A message as it is sent."""
    text = pack(message)
    return _HEAD.pack(_NUMBERS[type(message)], len(text)) + text


class MessageReader:
    """Messages out of a stream of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> Iterator[WorkerMessage]:
        """The messages that these bytes complete.

        Raises:
            MessageCorrupt: They are none.
        """
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            number, length = _HEAD.unpack_from(self._buffer)
            if number not in _KINDS or length > MAX_MESSAGE_BYTES:
                raise MessageCorrupt(f"no message of a worker: kind {number}, {length} bytes")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                return
            text = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            try:
                yield unpack(_KINDS[number], text)
            except MessageInvalid as error:
                raise MessageCorrupt(str(error)) from error
