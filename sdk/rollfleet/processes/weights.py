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
from rollfleet.processes.control_block import WeightsLocation
from rollfleet.schemes import Layout
from rollfleet.system.shared_memory import GRANULARITY, SharedMemory
from rollfleet.transports.worker_side import Weights
from rollfleet.weights.layout import Snapshot
from rollfleet_api.messages import Parameter

_PARAMETERS = TypeAdapter(tuple[Parameter, ...])


class SharedWeights:
    """The learner's end: where versions are put.

    Attributes:
        shared_memory: What workers read.
    """

    def __init__(self) -> None:
        self.shared_memory = SharedMemory.create()
        self._lists: dict[tuple[Parameter, ...], tuple[int, int]] = {}
        self._slots: dict[int, NDArray[np.uint8]] = {}  # by where they begin
        self._snapshots: dict[int, Snapshot] = {}  # that were made there last
        self._lent: tuple[int, Tensor] | None = None  # where, and its memory; nobody reads there

    def lend(
        self, parameters: tuple[Parameter, ...], nbytes: int, in_use: Collection[WeightsLocation]
    ) -> Snapshot | None:
        """A snapshot to be filled, where neither a worker reads nor one of these lies: `put` need not copy it.

        None: what was lent last has not come back yet.
        """
        if self._lent is not None:
            return None
        slot = self._free_slot(nbytes, {location.data_at for location in in_use})
        snapshot = self._snapshots.get(slot)
        if snapshot is None or snapshot.parameters != parameters or snapshot.data.numel() != nbytes:
            snapshot = Snapshot(parameters, torch.from_numpy(self._slots[slot][:nbytes]))
        self._lent = slot, snapshot.data
        return snapshot

    def is_lent(self, snapshot: Snapshot) -> bool:
        """Whether it lies where `lend` said."""
        return self._lent is not None and self._lent[1] is snapshot.data

    def put(self, version: int, snapshot: Snapshot, in_use: Collection[WeightsLocation]) -> WeightsLocation:
        """Let workers read a version; one that was made elsewhere is copied to where nobody reads."""
        nbytes = snapshot.data.numel()
        list_at, list_bytes = self._list(snapshot.parameters)
        if self._lent is not None and self.is_lent(snapshot):
            slot, self._lent = self._lent[0], None
            self._snapshots[slot] = snapshot
        else:
            slot = self._free_slot(nbytes, {location.data_at for location in in_use})
            self._slots[slot][:nbytes] = snapshot.data.numpy()
        fcntl.lockf(self.shared_memory, fcntl.LOCK_UN, 1, slot)
        return WeightsLocation(
            version=version,
            parameters_at=list_at,
            parameters_bytes=list_bytes,
            data_at=slot,
            data_bytes=nbytes,
        )

    def close(self) -> None:
        """Give up the memory."""
        self._slots.clear()
        self._snapshots.clear()
        self._lent = None
        self.shared_memory.close()

    def _list(self, parameters: tuple[Parameter, ...]) -> tuple[int, int]:
        if parameters not in self._lists:
            text = _PARAMETERS.dump_json(parameters)
            start, _ = self.shared_memory.grow(len(text))
            os.pwrite(self.shared_memory.fileno(), text, start)
            self._lists[parameters] = (start, len(text))
        return self._lists[parameters]

    def _free_slot(self, nbytes: int, in_use: set[int]) -> int:
        if self._lent is not None:
            in_use = in_use | {self._lent[0]}
        for start, memory in self._slots.items():
            fits = 0 <= memory.nbytes - nbytes < GRANULARITY
            if fits and start not in in_use and _lock(self.shared_memory, start, fcntl.LOCK_EX):
                return start
        start, _ = self.shared_memory.grow(nbytes)
        self._slots[start] = self.shared_memory.map(start, nbytes)
        _lock(self.shared_memory, start, fcntl.LOCK_EX)
        return start


class SharedWeightsInbox:
    """The worker's end: see `Inbox`.

    Args:
        shared_memory: The learner's.
        layout: Of the worker's own policy.
        location: Tells where the newest version lies now.
    """

    def __init__(
        self, shared_memory: SharedMemory, layout: Layout, location: Callable[[], WeightsLocation | None]
    ) -> None:
        self._shared_memory, self._layout, self._location = shared_memory, layout, location
        self._held: WeightsLocation | None = None
        self._newest: Weights | None = None
        self._slots: dict[int, NDArray[np.uint8]] = {}
        self._checked: set[int] = set()
        self._misfit: RollfleetError | None = None

    def newest(self) -> Weights | None:
        """The newest version; None: none has come yet. Nobody writes over it until `let_go`, or the next call.

        Raises:
            WeightMismatch: A version came that does not fit the policy here.
        """
        if self._misfit:
            raise self._misfit
        while (location := self._location()) is not None and location != self._held:
            self.let_go()
            if _lock(
                self._shared_memory, location.data_at, fcntl.LOCK_SH
            ):  # else the learner writes there: it was overtaken
                self._held = location  # unless that was before we had the lock, which the loop's condition asks
                self._newest = None
        if self._held is None:
            return None
        if self._newest is None:
            self._newest = Weights(version=self._held.version, data=self._read(self._held))
        return self._newest

    def let_go(self) -> None:
        """What was given out last has been loaded."""
        if self._held:
            fcntl.lockf(self._shared_memory, fcntl.LOCK_UN, 1, self._held.data_at)
            self._held = None

    def _read(self, location: WeightsLocation) -> NDArray[np.uint8]:
        if location.parameters_at not in self._checked:
            text = os.pread(self._shared_memory.fileno(), location.parameters_bytes, location.parameters_at)
            try:
                self._layout.check(_PARAMETERS.validate_json(text), theirs="the learner")
            except WeightMismatch as error:
                self._misfit = error
                raise
            self._checked.add(location.parameters_at)
        if location.data_at not in self._slots:
            self._slots[location.data_at] = self._shared_memory.map(location.data_at, location.data_bytes)
        return self._slots[location.data_at][: location.data_bytes]


def _lock(shared_memory: SharedMemory, start: int, how: int) -> bool:
    try:
        fcntl.lockf(shared_memory, how | fcntl.LOCK_NB, 1, start)
    except OSError:
        return False
    return True
