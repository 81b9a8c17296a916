"""Batches of whole trajectories, assembled from batches of frames as `trajs_per_batch` of TorchRL asks."""

from collections import deque
from typing import Any

import torch
from tensordict import TensorDictBase, pad_sequence

_IDS, _MASK = ("collector", "traj_ids"), ("collector", "mask")


class Trajectories:
    """Trajectories under way, and those that are complete and not yet taken.

    A trajectory is complete at a frame whose `("next", "done")` is true.
    """

    def __init__(self) -> None:
        self._open: dict[int, list[TensorDictBase]] = {}
        self._complete: deque[TensorDictBase] = deque()

    def __len__(self) -> int:
        """Return the number of complete trajectories."""
        return len(self._complete)

    def add(self, batch: TensorDictBase) -> None:
        """Add the frames of a batch `[..., T]`."""
        frames = batch.reshape(-1)
        ids = frames.get(_IDS)
        order = ids.argsort(stable=True)
        frames, ids = frames[order], ids[order]
        ended = frames.get(("next", "done")).reshape(len(ids), -1).any(-1)
        numbers, counts = ids.unique_consecutive(return_counts=True)
        end = 0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            start, end = end, end + count
            if number < 0:
                continue  # padding
            pieces = self._open.setdefault(number, [])
            pieces.append(frames[start:end])
            if ended[end - 1]:
                whole = self._open.pop(number)
                self._complete.append(torch.cat(whole) if len(whole) > 1 else whole[0])

    def drop(self, *, complete: bool = True) -> None:
        """Drop trajectories under way, and complete ones, too."""
        self._open.clear()
        if complete:
            self._complete.clear()

    def take(self, count: int, *, cat: bool) -> TensorDictBase:
        """Take the first `count` complete trajectories.

        Returns:
            With `cat`: `[frames]`, one after the other. Else `[count, T]`, padded, with a mask.
        """
        taken = [self._complete.popleft() for _ in range(count)]
        if cat:
            return torch.cat(taken) if len(taken) > 1 else taken[0]
        for index, each in enumerate(taken):
            taken[index] = each.copy().set(_MASK, torch.ones(each.shape[0], dtype=torch.bool, device=each.device))
        padded: Any = pad_sequence(taken, pad_dim=0)
        padded.names = [None, "time"]
        return padded
