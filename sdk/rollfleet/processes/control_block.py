"""What a worker is to know now, in memory that it shares with the learner: the newest state, never a queue of messages.

```
bytes
0-7    u64  number of this notice, one more each time
8-15   u64  xxh3_64 of all that follows and of the number
16-19  u32  length of the notice
20-    the notice, JSON
last 8 f64  when the worker was between two steps last, by the clock that all processes of a machine share
```
A notice may be read while it is written over: the checksum tells, and it is read again. That holds on every machine,
whatever order its cores see each other's writes in.
"""

import struct
import time
from dataclasses import dataclass

import xxhash

from rollfleet.errors import MessageTooLarge
from rollfleet.system.shared_memory import SharedMemory
from rollfleet_api.messages import Control, pack, unpack

BYTES = 1 << 16  # for a control message that names thousands of workers; what is not written costs nothing

_NUMBER = struct.Struct("<Q")
_HEAD = struct.Struct("<QQI")
_BEAT = struct.Struct("<d")
_BEAT_AT = BYTES - _BEAT.size


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLocation:
    """Where a version of the weights lies in the shared memory of weights.

    Attributes:
        version: The learner's number for it.
        parameters_at: Where the region with the list of its parameters begins, and how long that list is.
        parameters_bytes: See `parameters_at`.
        data_at: Where the region with its bytes begins, and how many they are.
        data_bytes: See `data_at`.
    """

    version: int
    parameters_at: int
    parameters_bytes: int
    data_at: int
    data_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """All that the learner has to say to one worker.

    Attributes:
        control: What to do; None: nothing yet.
        weights: The newest version; None: none yet.
        taken: How many of this life's batches the learner has taken.
        leave: Send what there is, and leave.
    """

    control: Control | None = None
    weights: WeightsLocation | None = None
    taken: int = 0
    leave: bool = False


class ControlBlock:
    """Holds one notice, which one process writes and one reads; and when that one was last heard of.

    Args:
        shared_memory: An empty one, or one that holds a board.
    """

    def __init__(self, shared_memory: SharedMemory) -> None:
        self._shared_memory = shared_memory
        self._memory = shared_memory.map(0, BYTES).data
        self._number = 0
        self._notice = Notice()

    @classmethod
    def create(cls) -> "ControlBlock":
        """An empty one, in shared memory of its own."""
        shared_memory = SharedMemory.create()
        shared_memory.grow(BYTES)
        return cls(shared_memory)

    def fileno(self) -> int:
        """Descriptor of its shared memory."""
        return self._shared_memory.fileno()

    def write(self, notice: Notice) -> None:
        """Put this notice in the place of the one before.

        Raises:
            MessageTooLarge: It does not fit.
        """
        text = pack(notice)
        if _HEAD.size + len(text) > _BEAT_AT:
            raise MessageTooLarge(len(text), _BEAT_AT - _HEAD.size, "notice")
        self._number += 1
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, self._number, _checksum(self._number, text), len(text))

    def read(self) -> Notice:
        """The newest notice; an empty one before the first. Costs next to nothing where it has not changed."""
        (number,) = _NUMBER.unpack_from(self._memory)
        while number != self._number:
            number, checksum, length = _HEAD.unpack_from(self._memory)
            text = bytes(self._memory[_HEAD.size : _HEAD.size + length])
            if _checksum(number, text) == checksum:
                self._number, self._notice = number, unpack(Notice, text)
        return self._notice

    def beat(self) -> None:
        """From whoever reads: it is between two steps."""
        _BEAT.pack_into(self._memory, _BEAT_AT, time.monotonic())

    def since_beat_s(self) -> float:
        """How long ago that was; 0: it never was."""
        (last,) = _BEAT.unpack_from(self._memory, _BEAT_AT)
        return max(0.0, time.monotonic() - last) if last else 0.0

    def close(self) -> None:
        """Give up the shared memory."""
        self._shared_memory.close()


def _checksum(number: int, text: bytes) -> int:
    return xxhash.xxh3_64_intdigest(text, seed=number)
