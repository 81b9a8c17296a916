"""Rows in memory that processes share: several write, any may draw, and the end of one does not affect the others.

```
shared memory:  the valid state | state | state | layout, JSON | a flag for each row | column | column | ...
state:  rows reserved, rows that can be drawn, frames written, the writes in progress, the quotas
```
A writer reserves rows, copies into them, and commits. Only reserving and committing take the lock. Each changes the
state atomically: it writes the other state, then one word that makes it the valid one.

A process that is killed while it copies leaves rows that are never drawn, until they are overwritten. Each write holds
a lock of its own: a free lock shows that its writer has died. No one waits for dead writers. A writer waits for a live
one only before it would overtake it by a whole round.
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

from rollfleet.data.batch import Key
from rollfleet.data.columns import ALIGNMENT, Columns
from rollfleet.errors import JobInvalid
from rollfleet.system.file_locks import FileLocks
from rollfleet.system.shared_memory import GRANULARITY, SharedMemory

State = NDArray[np.void]

WRITES = 512  # most writes in progress
QUOTAS = 64  # most open quotas
LAYOUT_BYTES = 1 << 18
POLL_S = 0.001

_STATE_LOCK, _WRITE_LOCKS = 0, 1  # each write has a lock, held while its writer lives

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
_STATES_AT = ALIGNMENT  # before them: which state is valid, and the capacity
_LAYOUT_AT = _STATES_AT + 2 * _STATE_BYTES
_FLAGS_AT = _LAYOUT_AT + LAYOUT_BYTES


class Ring:
    """The newest rows, in shared memory. A process has one for each memory; any of its threads may use it.

    Args:
        memory: The memory from `create`, in this or another process.
        locks: The locks from `create`.
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
        self._in_process()

    @classmethod
    def create(cls, capacity: int) -> "Ring":
        """Create an empty ring of `capacity` rows."""
        memory = SharedMemory.create()
        memory.stretch(_FLAGS_AT + capacity)
        memory.map(0, _FLAGS_AT)[:_STATES_AT].view(np.int64)[1] = capacity
        return cls(memory, FileLocks.create())

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled as a copy.

        Raises:
            TypeError: Always; explains how other processes get the buffer.
        """
        raise TypeError(
            "a shared replay buffer cannot be pickled: pass it to a collector as `replay_buffer`, or fork the process "
            "that uses it"
        )

    @property
    def descriptors(self) -> tuple[int, int]:
        """File descriptors of its memory and its locks, for another process."""
        return self._memory.fileno(), self._locks.fileno()

    @property
    def held(self) -> int:
        """Number of rows that can be drawn."""
        with self.reading() as state:
            return int(state["held"])

    @property
    def written(self) -> int:
        """Number of frames written since the start."""
        with self.reading() as state:
            return int(state["written"])

    def write(self, columns: Mapping[Key, Tensor], *, quota: int = -1) -> bool:
        """Write frames over the oldest. Of more than `capacity` frames the newest stay.

        Args:
            columns: `[frames, ...]` each.
            quota: The number of the quota that counts them; -1: none.

        Returns:
            False if the quota is closed or used up, and nothing was written.

        Raises:
            JobInvalid: Keys, dtypes or shapes differ from those of the first frames.
        """
        frames = len(next(iter(columns.values())))
        rows = min(frames, self.capacity)
        with self._in_process()._writing:
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
                        self._release(state, self._mine)
                        self._end_write(state)
        return True

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[Key, Tensor]:
        """Draw rows uniformly, with replacement; never rows that are being written.

        Raises:
            JobInvalid: The ring is empty.
        """
        with self.reading() as state:
            index = self._draw(state, count, generator)
            before = int(state["reserved"])
        drawn = {key: column[index] for key, column in self._columns.items()}
        with self.reading() as state:  # rows reserved meanwhile may have been overwritten during the copy
            spoilt = (index - before) % self.capacity < int(state["reserved"]) - before
            if spoilt.any():
                again = self._draw(state, int(spoilt.sum()), generator)
                for key, column in self._columns.items():
                    drawn[key][spoilt] = column[again]
        return drawn

    def newest_last(self) -> dict[Key, Tensor]:
        """Return copies of all rows that can be drawn, from oldest to newest."""
        with self.reading() as state:
            if not state["held"]:
                return {}
            self._map_columns(state)
            index = (int(state["reserved"]) + torch.arange(self.capacity, device="cpu")) % self.capacity
            index = index[self._can_be_drawn(state, index)]
            return {key: column[index] for key, column in self._columns.items()}

    def replace(self, columns: Mapping[Key, Tensor], written: int) -> None:
        """Replace all rows by these, and set the count of written frames. No one else may write meanwhile."""
        with self.changing() as state:
            self._flags[:] = 0
            state["reserved"] = state["held"] = 0
        if columns:
            self.write(columns)
        with self.changing() as state:
            state["written"] = written

    @contextmanager
    def reading(self) -> Iterator[State]:
        """Lock the state, and yield it for reading."""
        with self._in_process()._mutex, self._locks.held(_STATE_LOCK):
            yield self._states[int(self._words[0])]

    @contextmanager
    def changing(self) -> Iterator[State]:
        """Lock the state, and yield a copy that replaces it when the block ends; an error changes nothing."""
        with self._in_process()._mutex, self._locks.held(_STATE_LOCK):
            which = int(self._words[0])
            other = self._states[1 - which]
            other[...] = self._states[which]
            yield other
            self._words[0] = 1 - which

    def release_dead(self) -> None:
        """Release the reservations of processes that have ended."""
        with self._in_process()._writing, self.changing() as state:
            self._release_dead(state)

    def close(self) -> None:
        """Close the descriptors."""
        self._memory.close()

    # --- inside ---

    def _in_process(self) -> "Ring":
        """Return the ring, with new thread locks after a fork: the parent may have held the old ones."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._writing, self._mutex = threading.Lock(), threading.Lock()
            self._mine = -1  # the number of this process's write in progress; -1: none
        return self

    def _reserve(self, columns: Mapping[Key, Tensor], frames: int, rows: int, quota: int) -> int | None:
        """Reserve rows for a write, and return the first one; None: the quota is closed or used up.

        `self._mine` becomes the write's number, whose lock is then held.
        """
        while True:
            with self.changing() as state:
                self._map_columns(state, columns)
                if not _has_space(state, quota):
                    self._release_dead(state)
                    if not _has_space(state, quota):
                        return None
                start = int(state["reserved"]) % self.capacity
                number = self._free_write(state, start, rows)
                if number >= 0:
                    self._mine = number
                    self._locks.take(_WRITE_LOCKS + number)  # free, because this write is not in progress
                    state["writes"][number] = (start, rows, frames, quota)
                    state["held"] -= sum(int(np.count_nonzero(part)) for part in self._parts(start, rows))
                    state["reserved"] += rows
                    if quota >= 0:
                        state["quotas"]["reserved"][quota] += frames
                    return start
            time.sleep(POLL_S)

    def _end_write(self, state: State) -> None:
        state["writes"]["rows"][self._mine] = 0
        self._locks.give(_WRITE_LOCKS + self._mine)
        self._mine = -1

    def _free_write(self, state: State, start: int, rows: int) -> int:
        """Return a number for a write; -1: another write covers these rows, or all numbers are taken."""
        overlapping = self._overlapping(state, start, rows)
        if len(overlapping) or state["writes"]["rows"].all():
            self._release_dead(state)
            overlapping = self._overlapping(state, start, rows)
        free = np.flatnonzero(state["writes"]["rows"] == 0)
        return -1 if len(overlapping) or not len(free) else int(free[0])

    def _overlapping(self, state: State, start: int, rows: int) -> NDArray[np.int64]:
        writes = state["writes"]
        ahead = (writes["start"] - start) % self.capacity
        behind = (start - writes["start"]) % self.capacity
        return np.flatnonzero((writes["rows"] > 0) & ((ahead < rows) | (behind < writes["rows"])))

    def _release_dead(self, state: State) -> None:
        for number in np.flatnonzero(state["writes"]["rows"]).tolist():
            if self._locks.take(_WRITE_LOCKS + number):
                self._release(state, number)
                self._locks.give(_WRITE_LOCKS + number)

    def _release(self, state: State, number: int) -> None:
        start, rows, frames, quota = state["writes"][number].tolist()
        self._flag(start, rows, 0)
        state["writes"]["rows"][number] = 0
        if rows and quota >= 0:
            state["quotas"]["reserved"][quota] -= frames

    def _draw(self, state: State, count: int, generator: torch.Generator | None) -> Tensor:
        held, ever = int(state["held"]), min(int(state["reserved"]), self.capacity)
        if not held:
            raise JobInvalid("cannot sample from an empty replay buffer; collect first")
        self._map_columns(state)
        device = "cpu" if generator is None else generator.device
        index = torch.randint(ever, (count,), generator=generator, device=device).cpu()
        if held < ever:  # some rows are being written
            others = ~self._can_be_drawn(state, index)
            every = torch.arange(ever, device="cpu")
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

    def _map_columns(self, state: State, columns: Mapping[Key, Tensor] | None = None) -> None:
        """Map the columns; `columns`, if they are the first, define them.

        Raises:
            JobInvalid: `columns` differ from the ring's.
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
        tail = min(len(value), self.capacity - start)
        column[start : start + tail] = value[:tail]
        column[: len(value) - tail] = value[tail:]


def _has_space(state: State, quota: int) -> bool:
    if quota < 0:
        return True
    one = state["quotas"][quota]
    return bool(one["open"]) and (not one["limit"] or bool(one["reserved"] < one["limit"]))
