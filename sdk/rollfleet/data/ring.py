"""Rows in memory that processes share: several write, any may draw, and none spoils it for the others by ending.

```
shared memory:  which of two states holds | state | state | layout, JSON | a flag for each row | column | column | ...
state:  rows reserved, rows that can be drawn, frames written, the writes that are under way, the quotas
```
Who writes reserves rows, copies into them, and commits. Only to reserve and to commit takes the lock, and what changes
then changes at once: the other state is written, and one word says that it holds from now on. A process that is killed
while it copies leaves rows that nobody draws, until they are written over; whoever needs them sees that its lock is
free. Nobody waits for the dead; for the living only who would overtake them by a whole round.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.columns import ALIGNMENT, Columns, Key
from rollfleet.errors import JobInvalid
from rollfleet.system.file_locks import FileLocks
from rollfleet.system.shared_memory import GRANULARITY, SharedMemory

State = NDArray[np.void]

WRITES = 512  # that can be under way at once
QUOTAS = 64  # that can be open at once
LAYOUT_BYTES = 1 << 18
ASK_AGAIN_S = 0.001

_STATE_LOCK, _WRITE_LOCKS = 0, 1  # each write has a lock of its own, which says that its writer lives

_QUOTA = [(name, "<i8") for name in ("used", "open", "limit", "max_lag", "reserved", "written")]
_WRITE = [(name, "<i8") for name in ("start", "rows", "frames", "quota")]
_STATE = np.dtype(
    [
        *((name, "<i8") for name in ("reserved", "held", "written", "layout_bytes")),
        ("quotas", _QUOTA, QUOTAS),
        ("writes", _WRITE, WRITES),
    ]
)
_STATE_BYTES = -(-_STATE.itemsize // ALIGNMENT) * ALIGNMENT
_STATES_AT = ALIGNMENT  # before them: which one holds, and the capacity
_LAYOUT_AT = _STATES_AT + 2 * _STATE_BYTES
_FLAGS_AT = _LAYOUT_AT + LAYOUT_BYTES


class Ring:
    """The newest rows that were written. A process has one for shared memory; any of its threads may use it.

    Args:
        memory: What `create` made, here or in another process.
        locks: Which it made too.
    """

    def __init__(self, memory: SharedMemory, locks: FileLocks) -> None:
        self._memory, self._locks = memory, locks
        head = memory.map(0, _FLAGS_AT)
        self._words = head[:_STATES_AT].view(np.int64)
        self._states: list[State] = [
            np.ndarray((), _STATE, head.data, _STATES_AT + which * _STATE_BYTES) for which in (0, 1)
        ]
        self._text = head[_LAYOUT_AT:_FLAGS_AT]
        self.capacity = int(self._words[1])
        self._flags = memory.map(0, _FLAGS_AT + self.capacity)[_FLAGS_AT : _FLAGS_AT + self.capacity]
        self._columns_at = -(-(_FLAGS_AT + self.capacity) // GRANULARITY) * GRANULARITY
        self._layout = Columns(())
        self._columns: dict[Key, Tensor] = {}
        self._pid = -1
        self._here()

    @classmethod
    def create(cls, capacity: int) -> "Ring":
        """An empty one of so many rows."""
        memory = SharedMemory.create()
        memory.stretch(_FLAGS_AT + capacity)
        memory.map(0, _FLAGS_AT)[:_STATES_AT].view(np.int64)[1] = capacity
        return cls(memory, FileLocks.create())

    def __reduce__(self) -> NoReturn:
        """Not as a copy of its bytes.

        Raises:
            TypeError: Always; says how other processes get it.
        """
        raise TypeError(
            "a shared replay buffer cannot be pickled: a collector hands it to its workers as `replay_buffer`, and a "
            "process that is forked has it"
        )

    @property
    def descriptors(self) -> tuple[int, int]:
        """Of its memory and its locks, for another process."""
        return self._memory.fileno(), self._locks.fileno()

    @property
    def held(self) -> int:
        """Rows that can be drawn."""
        with self.reading() as state:
            return int(state["held"])

    @property
    def written(self) -> int:
        """Frames that were ever written."""
        with self.reading() as state:
            return int(state["written"])

    def write(self, columns: Mapping[Key, Tensor], *, quota: int = -1) -> bool:
        """Write frames; the oldest make room. Of more than `capacity` the newest stay.

        Args:
            columns: `[frames, ...]` each.
            quota: Where they are counted.

        Returns:
            False: the quota takes nothing now, and nothing was written.

        Raises:
            JobInvalid: They are laid out differently from the first ones.
        """
        frames = len(next(iter(columns.values())))
        rows = min(frames, self.capacity)
        with self._here()._writing:
            try:
                start = self._reserve(columns, frames, rows, quota)
                if start is None:
                    return False
                for key, value in columns.items():
                    self._put(self._columns[key], start, value.detach()[frames - rows :])
                with self.changing() as state:
                    self._flag(start, rows, 1)
                    state["held"] += rows
                    state["written"] += frames
                    if quota >= 0:
                        state["quotas"]["written"][quota] += frames
                    self._end_write(state)
            finally:
                if self._mine >= 0:
                    with self.changing() as state:
                        self._give_up(state, self._mine)
                        self._end_write(state)
        return True

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[Key, Tensor]:
        """Rows drawn with replacement, each as likely as any other; none that is being written.

        Raises:
            JobInvalid: There are none.
        """
        with self.reading() as state:
            index = self._draw(state, count, generator)
            before = int(state["reserved"])
        drawn = {key: column[index] for key, column in self._columns.items()}
        with self.reading() as state:  # what was reserved meanwhile may have been written over while it was copied
            spoilt = (index - before) % self.capacity < int(state["reserved"]) - before
            if spoilt.any():
                again = self._draw(state, int(spoilt.sum()), generator)
                for key, column in self._columns.items():
                    drawn[key][spoilt] = column[again]
        return drawn

    def newest_last(self) -> dict[Key, Tensor]:
        """All rows that can be drawn, from the oldest to the newest; copies."""
        with self.reading() as state:
            if not state["held"]:
                return {}
            self._see(state)
            index = (int(state["reserved"]) + torch.arange(self.capacity)) % self.capacity
            index = index[self._can_be_drawn(state, index)]
            return {key: column[index] for key, column in self._columns.items()}

    def begin_with(self, columns: Mapping[Key, Tensor], written: int) -> None:
        """Hold these rows alone, after so many frames were written. Nobody else may write meanwhile."""
        with self.changing() as state:
            self._flags[:] = 0
            state["reserved"] = state["held"] = 0
        if columns:
            self.write(columns)
        with self.changing() as state:
            state["written"] = written

    @contextmanager
    def reading(self) -> Iterator[State]:
        """What holds now; nobody changes it inside the block."""
        with self._here()._mutex, self._locks.held(_STATE_LOCK):
            yield self._states[int(self._words[0])]

    @contextmanager
    def changing(self) -> Iterator[State]:
        """What is changed inside the block holds from its end on, all at once; an error changes nothing."""
        with self._here()._mutex, self._locks.held(_STATE_LOCK):
            which = int(self._words[0])
            other = self._states[1 - which]
            other[...] = self._states[which]
            yield other
            self._words[0] = 1 - which

    def forget_the_dead(self) -> None:
        """Take back what processes had reserved that are no more."""
        with self._here()._writing, self.changing() as state:
            self._forget_the_dead(state)

    def close(self) -> None:
        """Give up the descriptors."""
        self._memory.close()

    # --- inside ---

    def _here(self) -> "Ring":
        """Itself, with locks among the threads of this process: another may be a fork, made while some were held."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._writing, self._mutex = threading.Lock(), threading.Lock()
            self._mine = -1  # the number of the write that is under way in this process
        return self

    def _reserve(self, columns: Mapping[Key, Tensor], frames: int, rows: int, quota: int) -> int | None:
        """The number of a write, whose lock is held, and its first row; None: the quota takes nothing."""
        while True:
            with self.changing() as state:
                self._see(state, columns)
                if not _takes(state, quota):
                    self._forget_the_dead(state)
                    if not _takes(state, quota):
                        return None
                start = int(state["reserved"]) % self.capacity
                number = self._room(state, start, rows)
                if number >= 0:
                    self._mine = number
                    self._locks.take(_WRITE_LOCKS + number)  # nobody has it whose write is not under way
                    state["writes"][number] = (start, rows, frames, quota)
                    state["held"] -= sum(int(np.count_nonzero(part)) for part in self._parts(start, rows))
                    state["reserved"] += rows
                    if quota >= 0:
                        state["quotas"]["reserved"][quota] += frames
                    return start
            time.sleep(ASK_AGAIN_S)

    def _end_write(self, state: State) -> None:
        state["writes"]["rows"][self._mine] = 0
        self._locks.give(_WRITE_LOCKS + self._mine)
        self._mine = -1

    def _room(self, state: State, start: int, rows: int) -> int:
        """A number for a write; -1: somebody is still writing these rows, or all numbers are taken."""
        under_way = self._overlapping(state, start, rows)
        if len(under_way) or state["writes"]["rows"].all():
            self._forget_the_dead(state)
            under_way = self._overlapping(state, start, rows)
        free = np.flatnonzero(state["writes"]["rows"] == 0)
        return -1 if len(under_way) or not len(free) else int(free[0])

    def _overlapping(self, state: State, start: int, rows: int) -> NDArray[np.int64]:
        writes = state["writes"]
        ahead = (writes["start"] - start) % self.capacity
        behind = (start - writes["start"]) % self.capacity
        return np.flatnonzero((writes["rows"] > 0) & ((ahead < rows) | (behind < writes["rows"])))

    def _forget_the_dead(self, state: State) -> None:
        for number in np.flatnonzero(state["writes"]["rows"]).tolist():
            if self._locks.take(_WRITE_LOCKS + number):
                self._give_up(state, number)
                self._locks.give(_WRITE_LOCKS + number)

    def _give_up(self, state: State, number: int) -> None:
        start, rows, frames, quota = state["writes"][number].tolist()
        self._flag(start, rows, 0)
        state["writes"]["rows"][number] = 0
        if rows and quota >= 0:
            state["quotas"]["reserved"][quota] -= frames

    def _draw(self, state: State, count: int, generator: torch.Generator | None) -> Tensor:
        held, ever = int(state["held"]), min(int(state["reserved"]), self.capacity)
        if not held:
            raise JobInvalid("nothing can be drawn from an empty replay buffer; collect first")
        self._see(state)
        device = None if generator is None else generator.device
        index = torch.randint(ever, (count,), generator=generator, device=device).cpu()
        if held < ever:  # some are being written
            others = ~self._can_be_drawn(state, index)
            every = torch.arange(ever)
            every = every[self._can_be_drawn(state, every)]
            chosen = torch.randint(held, (int(others.sum()),), generator=generator, device=device).cpu()
            index[others] = every[chosen]
        return index

    def _can_be_drawn(self, state: State, index: Tensor) -> Tensor:
        can = torch.from_numpy(self._flags)[index] == 1
        writes = state["writes"]
        for number in np.flatnonzero(writes["rows"]).tolist():
            can &= (index - int(writes["start"][number])) % self.capacity >= int(writes["rows"][number])
        return can

    def _see(self, state: State, columns: Mapping[Key, Tensor] | None = None) -> None:
        """Know the columns; lay them out like these, where these are the first.

        Raises:
            JobInvalid: They differ from these.
        """
        mine = None if columns is None else Columns.of(columns)
        if mine is not None and not state["layout_bytes"]:
            text = mine.text()
            if len(text) > LAYOUT_BYTES:
                raise JobInvalid(f"keys and shapes of a frame take {len(text)} bytes, more than {LAYOUT_BYTES}")
            self._memory.stretch(self._columns_at + mine.nbytes(self.capacity))
            self._text[: len(text)] = np.frombuffer(text, np.uint8)
            state["layout_bytes"] = len(text)
        if not self._columns:
            self._layout = Columns.parse(self._text[: int(state["layout_bytes"])].tobytes())
            memory = self._memory.map(self._columns_at, self._layout.nbytes(self.capacity))
            self._columns = self._layout.views(memory, self.capacity)
        if mine is not None:
            self._layout.check_alike(mine)

    def _parts(self, start: int, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        return self._flags[start : start + rows], self._flags[: max(0, start + rows - self.capacity)]

    def _flag(self, start: int, rows: int, value: int) -> None:
        for part in self._parts(start, rows):
            part[:] = value

    def _put(self, column: Tensor, start: int, value: Tensor) -> None:
        until_the_end = min(len(value), self.capacity - start)
        column[start : start + until_the_end] = value[:until_the_end]
        column[: len(value) - until_the_end] = value[until_the_end:]


def _takes(state: State, quota: int) -> bool:
    if quota < 0:
        return True
    one = state["quotas"][quota]
    return bool(one["open"]) and (not one["limit"] or bool(one["reserved"] < one["limit"]))
