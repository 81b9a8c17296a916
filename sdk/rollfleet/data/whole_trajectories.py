"""Whole trajectories, put together from rows of frames that end anywhere."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.batch import MASK, NO_TRAJECTORY, TRAJECTORY, Key
from rollfleet.data.tensor_memory import as_array

Piece = TypeVar("Piece")


class WholeTrajectories(Generic[Piece]):
    """Trajectories under way, and complete ones that were not taken yet, in the order of their ends.

    Each is a list of pieces, one for each row in which it has frames, in a form that the caller chooses.

    Example:
        >>> trajectories = WholeTrajectories[slice]()
        >>> ids, ended = np.array([[7, 7, 9]]), np.array([[False, True, False]])
        >>> trajectories.add(ids, ended, lambda row, frames: frames)
        >>> trajectories.take(1)
        [[slice(0, 2, None)]]
    """

    def __init__(self) -> None:
        self._open: dict[int, list[Piece]] = {}
        self._whole: deque[list[Piece]] = deque()

    def __len__(self) -> int:
        return len(self._whole)

    @property
    def started(self) -> bool:
        """Whether any trajectory is complete or has at least one frame."""
        return bool(self._whole or self._open)

    def add(self, ids: NDArray[np.int64], ended: NDArray[np.bool_], piece_of: Callable[[int, slice], Piece]) -> None:
        """Add frames.

        Args:
            ids: Their trajectory ids, int64 [rows, T]; those of padding are left out.
            ended: Whether a trajectory ended with a frame, bool [rows, T].
            piece_of: Returns these frames of a row. It is called by row, then frame.
        """
        found = []
        for row, own in enumerate(ids):
            changes = (np.flatnonzero(own[1:] != own[:-1]) + 1).tolist()
            for start, end in pairwise([0, *changes, len(own)]):
                if (trajectory := int(own[start])) == NO_TRAJECTORY:
                    continue
                self._open.setdefault(trajectory, []).append(piece_of(row, slice(start, end)))
                if ended[row, end - 1]:
                    found.append((end, row, self._open.pop(trajectory)))
        self._whole.extend(pieces for *_, pieces in sorted(found, key=itemgetter(0, 1)))

    def cut(self) -> list[list[Piece]]:
        """Make those under way complete, and return them."""
        cut = list(self._open.values())
        self._whole.extend(cut)
        self._open.clear()
        return cut

    def end(self, trajectory: int) -> list[Piece] | None:
        """Make one under way complete, and return it; None: it has no frame."""
        if (pieces := self._open.pop(trajectory, None)) is not None:
            self._whole.append(pieces)
        return pieces

    def forget(self) -> None:
        """Drop those under way."""
        self._open.clear()

    def keep(self, wanted: Callable[[int], bool]) -> None:
        """Drop those under way whose id is not wanted."""
        self._open = {each: pieces for each, pieces in self._open.items() if wanted(each)}

    def take(self, count: int) -> list[list[Piece]]:
        """Take the first complete ones, at most `count`."""
        return [self._whole.popleft() for _ in range(min(count, len(self._whole)))]


def add_batch(trajectories: WholeTrajectories[Any], batch: Any, ended: Tensor) -> None:
    """Add the frames of a TensorDict `[rows, T]`. `ended`: whether a trajectory ended with a frame, bool likewise."""
    ids = as_array(batch.get(TRAJECTORY))
    trajectories.add(ids, as_array(ended), lambda row, frames: batch[row, frames])


def batch_of(trajectories: Sequence[Sequence[Any]], *, padded: bool = True) -> Any:
    """Return trajectories that were taken as a TensorDict.

    Returns:
        `[trajectories, T]`, padded with zeros, with a mask; not `padded`: `[frames]`, one after the other.
    """
    from tensordict import pad_sequence

    whole: list[Any] = [torch.cat(list(pieces)) for pieces in trajectories]
    batch: Any
    if not padded:
        batch = torch.cat(whole)
        batch.names = ["time"]
        return batch
    batch = pad_sequence(whole, pad_dim=0).select(*whole[0].keys(True, True))  # in their order, not that of a set
    lengths = torch.tensor([len(each) for each in whole], device=batch.device)
    batch.set(MASK, torch.arange(batch.shape[1], device=batch.device) < lengths[:, None])
    batch.names = [None, "time"]
    return batch


def flag_last(batch: Any, flags: Sequence[Key]) -> None:
    """Make these flags true in the last frames of a batch `[..., T]`."""
    for key in flags:
        values = batch.get(key)
        values.select(batch.batch_dims - 1, -1).fill_(True)
        batch.set(key, values)  # a lazy stack has returned a copy
