"""Whole trajectories, put together from batches of frames of TorchRL's environments."""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rollfleet.data.batch import MASK, NO_TRAJECTORY, TRAJECTORY, Key


class WholeTrajectories:
    """Trajectories under way, and complete ones that were not taken yet, in the order of their ends."""

    def __init__(self) -> None:
        self._open: dict[int, list[Any]] = {}
        self._whole: deque[Any] = deque()

    def __len__(self) -> int:
        return len(self._whole)

    def add(self, batch: Any, ended: Tensor) -> None:
        """Add frames `[rows, T]`; `ended`: whether a trajectory ended with a frame, bool `[rows, T]`."""
        found = []
        for row, ids in enumerate(batch.get(TRAJECTORY)):
            changes = (ids[1:] != ids[:-1]).nonzero().flatten().add(1).tolist()
            for start, end in pairwise([0, *changes, len(ids)]):
                if (trajectory := int(ids[start])) == NO_TRAJECTORY:
                    continue
                self._open.setdefault(trajectory, []).append(batch[row, start:end])
                if ended[row, end - 1]:
                    found.append((end, row, torch.cat(self._open.pop(trajectory))))
        self._whole.extend(each for *_, each in sorted(found, key=lambda each: each[:2]))

    def cut(self, flags: Sequence[Key]) -> None:
        """Make those under way complete. `flags` are the keys that are true in the last frame of each."""
        for pieces in self._open.values():
            self._whole.append(torch.cat(pieces))
            flag_last(self._whole[-1], flags)
        self._open.clear()

    def forget(self) -> None:
        """Drop those under way."""
        self._open.clear()

    def take(self, count: int, *, padded: bool = True) -> Any:
        """Take the first ones, at most `count`.

        Returns:
            `[trajectories, T]`, padded with zeros, with a mask; not `padded`: `[frames]`, one after the other.
        """
        from tensordict import pad_sequence

        taken = [self._whole.popleft() for _ in range(min(count, len(self._whole)))]
        batch: Any
        if not padded:
            batch = torch.cat(taken)
            batch.names = ["time"]
            return batch
        batch = pad_sequence(taken, pad_dim=0).select(*taken[0].keys(True, True))  # in their order, not that of a set
        lengths = torch.tensor([len(each) for each in taken], device=batch.device)
        batch.set(MASK, torch.arange(batch.shape[1], device=batch.device) < lengths[:, None])
        batch.names = [None, "time"]
        return batch


def flag_last(batch: Any, flags: Sequence[Key]) -> None:
    """Make these flags true in the last frames of a batch `[..., T]`."""
    for key in flags:
        values = batch.get(key)
        values.select(batch.batch_dims - 1, -1).fill_(True)
        batch.set(key, values)  # a lazy stack has returned a copy
