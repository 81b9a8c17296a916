"""What the workers of one collector may write into a ring of rows, and what they have written."""

import time
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from rollfleet.data.columns import Key
from rollfleet.data.ring import ASK_AGAIN_S, QUOTAS, Ring
from rollfleet.errors import JobInvalid

ANY_LAG = 1 << 62


class WriteQuota:
    """Of one collector. The learner opens it; workers' processes write on it, by its number.

    Args:
        ring: Where the rows are.
        number: As `open` gave it.

    Attributes:
        ring: See above.
        number: See above.
    """

    def __init__(self, ring: Ring, number: int) -> None:
        self.ring, self.number = ring, number
        self._final: int | None = None

    @classmethod
    def open(cls, ring: Ring, *, limit: int) -> "WriteQuota":
        """A new one, with nothing on it.

        Args:
            ring: Where the rows are.
            limit: Frames from which on nothing more is taken; 0: there are none.

        Raises:
            JobInvalid: So many collectors fill the ring already.
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
        """Frames that are in the buffer, or were until others took their place."""
        return self._get("written") if self._final is None else self._final

    @property
    def max_lag(self) -> int:
        """Versions that frames may be behind when they are written."""
        return self._get("max_lag")

    @max_lag.setter
    def max_lag(self, versions: int) -> None:
        self._set("max_lag", versions)

    def write(self, columns: Mapping[Key, Tensor]) -> bool:
        """See `Ring.write`."""
        return self.ring.write(columns, quota=self.number)

    def begin_at(self, frames: int) -> None:
        """Count on from here: a run was restored. Nobody writes on it yet."""
        with self.ring.changing() as state:
            for name in ("reserved", "written"):
                state["quotas"][name][self.number] = frames

    def shut(self) -> None:
        """Take nothing until `take_again`; what is under way is written when this returns."""
        self._set("open", 0)
        while True:
            self.ring.forget_the_dead()
            with self.ring.reading() as state:
                one = state["quotas"][self.number]
                if one["reserved"] == one["written"]:
                    return
            time.sleep(ASK_AGAIN_S)

    def take_again(self) -> None:
        """The inverse of `shut`."""
        self._set("open", 1)

    def close(self) -> None:
        """Give the number back. Nobody writes on it any more; `written` stays as it is. Again is harmless."""
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
