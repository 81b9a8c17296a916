"""Weights in shared memory: written once by the learner, read from there by each worker.

The learner makes a version right there, where it can (`lend`), and copies it there where it cannot. A worker holds a
lock on a version while it loads it, and the learner writes only where it gets that lock. Nobody waits for a lock: where
a worker does not get it, there is a newer version elsewhere. The locks are the system's (`fcntl`), so that those of a
process that dies are gone too. (A process also loses them all when it closes any descriptor of the file, which a
mapping has too: so nothing is unmapped here.)
"""

import fcntl
import os
from collections.abc import Callable, Collection

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor

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
        self._snapshots: dict[int, Snapshot] = {}  # that were made there last
        self._lent: tuple[int, Tensor] | None = None  # where, and its memory; nobody reads there

    def lend(self, parameters: tuple[Parameter, ...], nbytes: int, in_use: Collection[Posted]) -> Snapshot | None:
        """A snapshot to be filled, where neither a worker reads nor one of these lies: `put` need not copy it.

        None: what was lent last has not come back yet.
        """
        if self._lent is not None:
            return None
        place = self._free_place(nbytes, {posted.data_at for posted in in_use})
        snapshot = self._snapshots.get(place)
        if snapshot is None or snapshot.parameters != parameters or snapshot.data.numel() != nbytes:
            snapshot = Snapshot(parameters, torch.from_numpy(self._places[place][:nbytes]))
        self._lent = place, snapshot.data
        return snapshot

    def is_lent(self, snapshot: Snapshot) -> bool:
        """Whether it lies where `lend` said."""
        return self._lent is not None and self._lent[1] is snapshot.data

    def put(self, version: int, snapshot: Snapshot, in_use: Collection[Posted]) -> Posted:
        """Let workers read a version; one that was made elsewhere is copied to where nobody reads."""
        nbytes = snapshot.data.numel()
        list_at, list_bytes = self._list(snapshot.parameters)
        if self._lent is not None and self.is_lent(snapshot):
            place, self._lent = self._lent[0], None
            self._snapshots[place] = snapshot
        else:
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
        self._snapshots.clear()
        self._lent = None
        self.arena.close()

    def _list(self, parameters: tuple[Parameter, ...]) -> tuple[int, int]:
        if parameters not in self._lists:
            text = _PARAMETERS.dump_json(parameters)
            start, _ = self.arena.grow(len(text))
            os.pwrite(self.arena.fileno(), text, start)
            self._lists[parameters] = (start, len(text))
        return self._lists[parameters]

    def _free_place(self, nbytes: int, in_use: set[int]) -> int:
        if self._lent is not None:
            in_use = in_use | {self._lent[0]}
        for start, memory in self._places.items():
            fits = 0 <= memory.nbytes - nbytes < GRANULARITY
            if fits and start not in in_use and _lock(self.arena, start, fcntl.LOCK_EX):
                return start
        start, _ = self.arena.grow(nbytes)
        self._places[start] = self.arena.map(start, nbytes)
        _lock(self.arena, start, fcntl.LOCK_EX)
        return start


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
            if _lock(self._arena, posted.data_at, fcntl.LOCK_SH):  # else the learner writes there: it was overtaken
                self._held = posted  # unless that was before we had the lock, which the loop's condition asks
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


def _lock(arena: Arena, start: int, how: int) -> bool:
    try:
        fcntl.lockf(arena, how | fcntl.LOCK_NB, 1, start)
    except OSError:
        return False
    return True
