"""Weights in shared memory: written once by the learner, read from there by each worker.

A worker holds a lock on a version while it loads it, and the learner writes only where it gets that lock. The locks are
the system's (`fcntl`), so that those of a process that dies are gone too. (A process also loses them all when it closes
any descriptor of the file, which a mapping has too: so nothing is unmapped here.)
"""

import fcntl
import os
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from rollfleet.errors import RollfleetError, WeightMismatch
from rollfleet.schemes import Layout
from rollfleet.transports.arena import GRANULARITY, Arena
from rollfleet.transports.board import Posted
from rollfleet.transports.port import Weights
from rollfleet.weights import Snapshot
from rollfleet_api.messages import Parameter

_PARAMETERS = TypeAdapter(tuple[Parameter, ...])


class Shelf:
    """The learner's end: where versions are put.

    Attributes:
        arena: What workers read.
    """

    def __init__(self) -> None:
        self.arena = Arena.create()
        self._lists: dict[tuple[Parameter, ...], tuple[int, int]] = {}
        self._places: dict[int, NDArray[np.uint8]] = {}  # by where they begin

    def put(self, version: int, snapshot: Snapshot, in_use: Collection[Posted]) -> Posted:
        """Copy a version to where neither a worker reads nor one of these lies."""
        nbytes = snapshot.data.numel()
        list_at, list_bytes = self._list(snapshot.parameters)
        place = self._free_place(nbytes, {posted.data_at for posted in in_use})
        self._places[place][:nbytes] = snapshot.data.numpy()
        fcntl.lockf(self.arena, fcntl.LOCK_UN, 1, place)
        return Posted(
            version=version,
            parameters_at=list_at,
            parameters_bytes=list_bytes,
            data_at=place,
            data_bytes=nbytes,
        )

    def close(self) -> None:
        """Give up the memory."""
        self._places.clear()
        self.arena.close()

    def _list(self, parameters: tuple[Parameter, ...]) -> tuple[int, int]:
        if parameters not in self._lists:
            text = _PARAMETERS.dump_json(parameters)
            start, _ = self.arena.grow(len(text))
            os.pwrite(self.arena.fileno(), text, start)
            self._lists[parameters] = (start, len(text))
        return self._lists[parameters]

    def _free_place(self, nbytes: int, in_use: set[int]) -> int:
        for start, memory in self._places.items():
            if start not in in_use and 0 <= memory.nbytes - nbytes < GRANULARITY and self._lock(start):
                return start
        start, _ = self.arena.grow(nbytes)
        self._places[start] = self.arena.map(start, nbytes)
        self._lock(start)
        return start

    def _lock(self, start: int) -> bool:
        try:
            fcntl.lockf(self.arena, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
        except OSError:
            return False
        return True


class SharedInbox:
    """The worker's end: see `Inbox`.

    Args:
        arena: The learner's.
        layout: Of the worker's own policy.
        posted: Tells where the newest version lies now.
    """

    def __init__(self, arena: Arena, layout: Layout, posted: Callable[[], Posted | None]) -> None:
        self._arena, self._layout, self._posted = arena, layout, posted
        self._held: Posted | None = None
        self._newest: Weights | None = None
        self._places: dict[int, NDArray[np.uint8]] = {}
        self._checked: set[int] = set()
        self._misfit: RollfleetError | None = None

    def newest(self) -> Weights | None:
        """The newest version; None: none has come yet. Nobody writes over it until `let_go`, or the next call.

        Raises:
            WeightMismatch: A version came that does not fit the policy here.
        """
        if self._misfit:
            raise self._misfit
        while (posted := self._posted()) is not None and posted != self._held:
            self.let_go()
            fcntl.lockf(self._arena, fcntl.LOCK_SH, 1, posted.data_at)
            self._held = posted  # unless it was overtaken before we had the lock, which the loop's condition asks
            self._newest = None
        if self._held is None:
            return None
        if self._newest is None:
            self._newest = Weights(version=self._held.version, data=self._read(self._held))
        return self._newest

    def let_go(self) -> None:
        """What was given out last has been loaded."""
        if self._held:
            fcntl.lockf(self._arena, fcntl.LOCK_UN, 1, self._held.data_at)
            self._held = None

    def _read(self, posted: Posted) -> NDArray[np.uint8]:
        if posted.parameters_at not in self._checked:
            text = os.pread(self._arena.fileno(), posted.parameters_bytes, posted.parameters_at)
            try:
                self._layout.check(_PARAMETERS.validate_json(text), theirs="the learner")
            except WeightMismatch as error:
                self._misfit = error
                raise
            self._checked.add(posted.parameters_at)
        if posted.data_at not in self._places:
            self._places[posted.data_at] = self._arena.map(posted.data_at, posted.data_bytes)
        return self._places[posted.data_at][: posted.data_bytes]
