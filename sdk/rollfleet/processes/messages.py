"""Messages from a worker to the learner, over their socket: a byte for the kind, a length, and JSON."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rollfleet.errors import MessageCorrupt
from rollfleet_api.messages import MAX_MESSAGE_BYTES, Answer, Evaluation, MessageInvalid, WorkerStatus, pack, unpack

_HEAD = struct.Struct("<BI")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReady:
    """A batch lies in `nbytes` from `start` of the worker's shared memory of batches.

    `sequence` is its number in its worker's incarnation, from 0.
    """

    sequence: int
    start: int
    nbytes: int


WorkerMessage = WorkerStatus | BatchReady | Evaluation | Answer

_KINDS: dict[int, type[WorkerMessage]] = {1: WorkerStatus, 2: BatchReady, 3: Evaluation, 4: Answer}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def encode_message(message: WorkerMessage) -> bytes:
    """Encode a message for the socket."""
    text = pack(message)
    return _HEAD.pack(_NUMBERS[type(message)], len(text)) + text


class MessageReader:
    """Decodes messages from a stream of bytes.

    Example:
        >>> reader = MessageReader()
        >>> data = encode_message(BatchReady(sequence=0, start=4096, nbytes=100))
        >>> list(reader.add(data[:7])), list(reader.add(data[7:]))
        ([], [BatchReady(sequence=0, start=4096, nbytes=100)])
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> Iterator[WorkerMessage]:
        """Yield the messages that these bytes complete.

        Raises:
            MessageCorrupt: The bytes are not valid messages.
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
