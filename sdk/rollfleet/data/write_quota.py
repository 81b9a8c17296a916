"""How many frames the workers of one collector may write into a ring, and how many they have written."""

import time
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from rollfleet.data.batch import Key
from rollfleet.data.ring import POLL_S, QUOTAS, Ring
from rollfleet.errors import JobInvalid

ANY_LAG = 1 << 62


class WriteQuota:
    """The quota of one collector. The learner opens it; worker processes write under its number.

    Attributes:
        ring: The ring of rows.
        number: The number from `open`.
    """

    def __init__(self, ring: Ring, number: int) -> None:
        self.ring, self.number = ring, number
        self._final: int | None = None

    @classmethod
    def open(cls, ring: Ring, *, limit: int) -> "WriteQuota":
        """Open a quota with no frames written.

        Args:
            ring: The ring of rows.
            limit: Refuse writes after this many frames; 0: no limit.

        Raises:
            JobInvalid: All `QUOTAS` quotas of the ring are open.
        """
        with ring.changing() as state:
            free = np.flatnonzero(state["quotas"]["used"] == 0)
            if not len(free):
                raise JobInvalid(f"{QUOTAS} collectors fill this replay buffer already; shut one down")
            number = int(free[0])
            state["quotas"][number] = (1, 1, limit, ANY_LAG, 0, 0)
        return cls(ring, number)

    @property
    def written(self) -> int:
        """Number of frames written, including those overwritten since."""
        return self._get("written") if self._final is None else self._final

    @property
    def max_lag(self) -> int:
        """The most versions that frames may lag behind when they are written."""
        return self._get("max_lag")

    @max_lag.setter
    def max_lag(self, versions: int) -> None:
        self._set("max_lag", versions)

    def write(self, columns: Mapping[Key, Tensor]) -> bool:
        """See `Ring.write`."""
        return self.ring.write(columns, quota=self.number)

    def start_at(self, frames: int) -> None:
        """Start the count at `frames`, after a run was restored. Call it before any write."""
        with self.ring.changing() as state:
            for name in ("reserved", "written"):
                state["quotas"][name][self.number] = frames

    def pause(self) -> None:
        """Refuse writes until `resume`, and wait until writes in progress are complete."""
        self._set("open", 0)
        while True:
            self.ring.release_dead()
            with self.ring.reading() as state:
                one = state["quotas"][self.number]
                if one["reserved"] == one["written"]:
                    return
            time.sleep(POLL_S)

    def resume(self) -> None:
        """Accept writes again."""
        self._set("open", 1)

    def close(self) -> None:
        """Free the number, after the last write; `written` keeps its value. May be called again."""
        if self._final is None:
            with self.ring.changing() as state:
                self._final = int(state["quotas"]["written"][self.number])
                state["quotas"]["used"][self.number] = state["quotas"]["open"][self.number] = 0

    def _get(self, name: str) -> int:
        with self.ring.reading() as state:
            return int(state["quotas"][name][self.number])

    def _set(self, name: str, value: int) -> None:
        if self._final is None:
            with self.ring.changing() as state:
                state["quotas"][name][self.number] = value
