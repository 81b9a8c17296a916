"""Weights in shared memory: the learner writes a version once, and each worker reads it from there.

Each version lies in a slot. A worker locks a slot while it loads the version, and the learner writes only to slots that
it can lock. Neither waits for a lock: if a worker cannot get one, another slot has a newer version. The locks are the
system's (`fcntl`), which releases those of a process that dies. A process also loses all its locks when it closes any
descriptor of the file, and a mapping has one too. So nothing is unmapped here.
"""

import fcntl
import os
from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from rollfleet.processes.control_block import WeightsLocation
from rollfleet.schemes import Layout
from rollfleet.system.shared_memory import GRANULARITY, SharedMemory
from rollfleet.transports.worker_side import Weights
from rollfleet.weights.layout import State
from rollfleet_api.transfers import Parameter

_PARAMETERS = TypeAdapter(tuple[Parameter, ...])


class SharedWeights:
    """The learner's end: writes versions into slots.

    Example:
        >>> from rollfleet.weights.layout import WeightLayout
        >>> layout = WeightLayout({"policy": {"w": torch.ones(2)}})
        >>> weights = SharedWeights()
        >>> location = weights.put(1, layout, {"policy": {"w": torch.ones(2)}}, in_use=[])
        >>> SharedWeightsInbox(weights.shared_memory, layout, lambda: location).newest().version
        1

    Attributes:
        shared_memory: The memory that workers read.
    """

    def __init__(self) -> None:
        self.shared_memory = SharedMemory.create()
        self._lists: dict[tuple[Parameter, ...], tuple[int, int]] = {}
        self._slots: dict[int, NDArray[np.uint8]] = {}  # by their start

    def put(
        self, version: int, layout: Layout, models: Mapping[str, State], in_use: Collection[int]
    ) -> WeightsLocation:
        """Copy a version into a slot that no worker reads and that is not `in_use`, and publish it.

        `in_use`: `data_at` of versions that a worker may read, now or after a restart.
        """
        nbytes = layout.total_bytes
        list_at, list_bytes = self._list(layout.parameters)
        slot = self._free_slot(nbytes, in_use)
        flags = layout.snapshot(models, torch.from_numpy(self._slots[slot][:nbytes])).flags
        fcntl.lockf(self.shared_memory, fcntl.LOCK_UN, 1, slot)
        return WeightsLocation(
            version=version,
            parameters_at=list_at,
            parameters_bytes=list_bytes,
            data_at=slot,
            data_bytes=nbytes,
            flags=flags,
        )

    def close(self) -> None:
        """Release the memory."""
        self._slots.clear()
        self.shared_memory.close()

    def _list(self, parameters: tuple[Parameter, ...]) -> tuple[int, int]:
        if parameters not in self._lists:
            text = _PARAMETERS.dump_json(parameters)
            start, _ = self.shared_memory.grow(len(text))
            os.pwrite(self.shared_memory.fileno(), text, start)
            self._lists[parameters] = (start, len(text))
        return self._lists[parameters]

    def _free_slot(self, nbytes: int, in_use: Collection[int]) -> int:
        for start, memory in self._slots.items():
            fits = 0 <= memory.nbytes - nbytes < GRANULARITY
            if fits and start not in in_use and _lock(self.shared_memory, start, fcntl.LOCK_EX):
                return start
        start, _ = self.shared_memory.grow(nbytes)
        self._slots[start] = self.shared_memory.map(start, nbytes)
        _lock(self.shared_memory, start, fcntl.LOCK_EX)
        return start


class SharedWeightsInbox:
    """The worker's end, for a policy of this layout: see `WeightsInbox`.

    `location` returns where the newest version is; None: none has come yet.
    """

    def __init__(
        self, shared_memory: SharedMemory, layout: Layout, location: Callable[[], WeightsLocation | None]
    ) -> None:
        self._shared_memory, self._layout, self._location = shared_memory, layout, location
        self._held: WeightsLocation | None = None
        self._slots: dict[int, NDArray[np.uint8]] = {}
        self._checked: set[int] = set()

    def newest(self) -> Weights | None:
        """Return the newest version; None: none has come yet. It stays unchanged until `release` or the next call.

        Raises:
            WeightMismatch: A version does not fit the worker's policy.
        """
        while (location := self._location()) is not None and location != self._held:
            self.release()
            if _lock(self._shared_memory, location.data_at, fcntl.LOCK_SH):  # else the learner writes a newer one there
                self._held = location  # the loop's condition checks that it was not replaced before we had the lock
        if self._held is None:
            return None
        return Weights(version=self._held.version, data=self._read(self._held), flags=self._held.flags)

    def release(self) -> None:
        """Release the version that `newest` returned last: it is loaded."""
        if self._held:
            fcntl.lockf(self._shared_memory, fcntl.LOCK_UN, 1, self._held.data_at)
            self._held = None

    def _read(self, location: WeightsLocation) -> NDArray[np.uint8]:
        if location.parameters_at not in self._checked:
            text = os.pread(self._shared_memory.fileno(), location.parameters_bytes, location.parameters_at)
            self._layout.check(_PARAMETERS.validate_json(text))
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
