"""Trajectory ids: unique in a job, also after workers restart."""

import numpy as np
from numpy.typing import NDArray

MAX_INCARNATIONS = 1 << 15
_COUNTER_BITS = 32
_INCARNATION_BITS = 15


class TrajectoryIds:
    """The trajectory ids of one incarnation of one worker.

    An id is an int64, never negative: worker (16 bits) | incarnation (15 bits) | counter (32 bits).

    Example:
        >>> TrajectoryIds(worker=0, incarnation=0).take(3)
        array([0, 1, 2])
    """

    def __init__(self, worker: int, incarnation: int) -> None:
        """Start the counter at 0. `worker` and `incarnation` fit their bits."""
        self._first = ((worker << _INCARNATION_BITS) | incarnation) << _COUNTER_BITS
        self._taken = 0

    def take(self, n: int) -> NDArray[np.int64]:
        """Return the next `n` ids: int64 [n].

        Raises:
            OverflowError: All 2**32 ids of this incarnation are used up.
        """
        if self._taken + n > 1 << _COUNTER_BITS:
            raise OverflowError("this worker has used up its 2**32 trajectory ids; restart it")
        first = self.next
        self._taken += n
        return np.arange(first, first + n, dtype=np.int64)

    @property
    def next(self) -> int:
        """The id that is taken next."""
        return self._first + self._taken

    def along(self, ended: NDArray[np.bool_], current: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of frames, int64 [T, envs], and change `current`, int64 [envs], to those of the next frames.

        `ended`: bool [T, envs], whether a trajectory ends with a frame.
        """
        frames, envs = ended.nonzero()
        nth = np.zeros((len(ended) + 1, len(current)), dtype=np.int64)  # trajectories before each frame
        np.cumsum(ended, axis=0, out=nth[1:])
        ids = np.zeros((int(nth[-1].max()) + 1, len(current)), dtype=np.int64)
        ids[0] = current
        ids[nth[frames + 1, envs], envs] = self.take(len(frames))
        found: NDArray[np.int64] = np.take_along_axis(ids, nth, axis=0)
        current[...] = found[-1]
        return found[:-1]


class EnvVersions:
    """The versions of the environments' settings, by trajectory: those of its first frame.

    Example:
        >>> ids, versions = TrajectoryIds(worker=0, incarnation=0), EnvVersions()
        >>> begun = ids.take(2)
        >>> versions.begin(3, ids)
        >>> versions.of(np.append(begun, ids.take(1)))
        array([0, 0, 3])
    """

    def __init__(self) -> None:
        self._firsts, self._versions = np.zeros(1, np.int64), np.zeros(1, np.int64)

    def begin(self, version: int, ids: TrajectoryIds) -> None:
        """Give this version to the trajectories that begin from now on, with these ids."""
        earlier = self._firsts < ids.next  # with an id that was taken
        self._firsts = np.append(self._firsts[earlier], ids.next)
        self._versions = np.append(self._versions[earlier], version)

    def of(self, trajectories: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the versions of trajectories, int64 in the same shape; those of padding are 0."""
        found = np.searchsorted(self._firsts, trajectories, side="right") - 1
        return np.where(trajectories < 0, 0, self._versions[found])


def split(trajectory_id: int) -> tuple[int, int, int]:
    """Return worker, incarnation and counter of an id: the inverse of how `TrajectoryIds` builds it."""
    counter = trajectory_id & ((1 << _COUNTER_BITS) - 1)
    rest = trajectory_id >> _COUNTER_BITS
    return rest >> _INCARNATION_BITS, rest & (MAX_INCARNATIONS - 1), counter
