"""A worker's instructions, in memory that it shares with the learner: the newest only, never a queue.

```
bytes
0-7    u64  number of the instructions, one more with each write
8-15   u64  xxh3_64 of the number and the text
16-19  u32  length of the text
20-    the text: instructions as JSON
last 8 f64  time of the worker's last beat between two steps, by the clock that all processes of a machine share
```
A reader may see a half-written text. Its checksum is then wrong, and the reader tries again. That holds on every
machine, in whatever order its cores see each other's writes.
"""

import struct
import time
from dataclasses import dataclass

import xxhash

from rollfleet.errors import MessageTooLarge
from rollfleet.system.shared_memory import SharedMemory
from rollfleet_api.messages import Call, Control, pack, unpack
from rollfleet_api.transfers import Flags

BYTES = 1 << 20  # enough for a call, and for control that names thousands of workers; untouched pages cost nothing

_NUMBER = struct.Struct("<Q")
_HEAD = struct.Struct("<QQI")
_BEAT = struct.Struct("<d")
_BEAT_AT = BYTES - _BEAT.size


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLocation:
    """The location of a version in the shared memory of weights.

    Attributes:
        version: The learner's number for it.
        parameters_at: Start of the region with the list of its parameters.
        parameters_bytes: Length of that list.
        data_at: Start of the region with its data.
        data_bytes: Length of its data.
        flags: Its `training` flags.
    """

    version: int
    parameters_at: int
    parameters_bytes: int
    data_at: int
    data_bytes: int
    flags: Flags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """The learner's instructions to one worker.

    Attributes:
        control: The newest control message; None: none yet.
        weights: The location of the newest version; None: none yet.
        taken: The number of this incarnation's batches that the learner has taken.
        leave: Send the frames collected so far, and leave.
        call: The call that waits for an answer; None: none does.
    """

    control: Control | None = None
    weights: WeightsLocation | None = None
    taken: int = 0
    leave: bool = False
    call: Call | None = None


class ControlBlock:
    """Holds the instructions that one process writes and another reads, and the time of the reader's last beat.

    Example:
        >>> import os
        >>> learner = ControlBlock.create()
        >>> worker = ControlBlock(SharedMemory(os.dup(learner.fileno())))
        >>> learner.write(Instructions(taken=3))
        >>> worker.read().taken
        3

    Args:
        shared_memory: A region of `BYTES`: zeros, or the memory of another `ControlBlock`.
    """

    def __init__(self, shared_memory: SharedMemory) -> None:
        self._shared_memory = shared_memory
        self._memory = shared_memory.map(0, BYTES).data
        self._number = 0
        self._instructions = Instructions()

    @classmethod
    def create(cls) -> "ControlBlock":
        """Create an empty one, in new shared memory."""
        shared_memory = SharedMemory.create()
        shared_memory.grow(BYTES)
        return cls(shared_memory)

    def fileno(self) -> int:
        """Return the descriptor of its shared memory."""
        return self._shared_memory.fileno()

    def write(self, instructions: Instructions) -> None:
        """Replace the instructions.

        Raises:
            MessageTooLarge: They do not fit.
        """
        text = pack(instructions)
        if _HEAD.size + len(text) > _BEAT_AT:
            raise MessageTooLarge(len(text), _BEAT_AT - _HEAD.size, "instructions")
        self._number += 1
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, self._number, _checksum(self._number, text), len(text))

    def read(self) -> Instructions:
        """Return the newest instructions; empty ones before the first. Almost free while they stay the same."""
        (number,) = _NUMBER.unpack_from(self._memory)
        while number != self._number:
            number, checksum, length = _HEAD.unpack_from(self._memory)
            text = bytes(self._memory[_HEAD.size : _HEAD.size + length])
            if _checksum(number, text) == checksum:
                self._number, self._instructions = number, unpack(Instructions, text)
        return self._instructions

    def beat(self) -> None:
        """Record, as the reader, that it is between two steps."""
        _BEAT.pack_into(self._memory, _BEAT_AT, time.monotonic())

    def since_beat_s(self) -> float:
        """Return the seconds since the last beat; 0: there was none."""
        (last,) = _BEAT.unpack_from(self._memory, _BEAT_AT)
        return max(0.0, time.monotonic() - last) if last else 0.0

    def close(self) -> None:
        """Release the shared memory."""
        self._shared_memory.close()


def _checksum(number: int, text: bytes) -> int:
    return xxhash.xxh3_64_intdigest(text, seed=number)
