"""A batch of the native collector in the shape of TorchRL's."""

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase

from rollfleet.data.batch import MASK, TRAJECTORY, VERSION, is_dense


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The shape `[*env.batch_size, T]` of one worker's frames, and how those of several workers are joined.

    Attributes:
        sizes: The batch size of a worker's environments.
        cat: The dimension along which workers are concatenated; "stack": a first dimension of workers; None: a batch is
            of one worker.
    """

    sizes: torch.Size
    cat: int | str | None = None

    def of(self, batch: TensorDictBase) -> TensorDictBase:
        """Return a batch in this shape. Its memory is the same if it can be.

        Args:
            batch: `[envs, T]`, also of several workers that a job has joined, or `[workers, envs, T]`.
        """
        first = batch.batch_dims - 2
        if len(self.sizes) == 0:
            batch = batch.squeeze(first) if batch.shape[first] == 1 else batch.flatten(first, first + 1)
        elif len(self.sizes) > 1:
            batch = batch.unflatten(first, (batch.shape[first] // self.sizes[1:].numel(), *self.sizes[1:]))
        if isinstance(self.cat, int):
            along_time = self.cat % (batch.batch_dims - 1) == batch.batch_dims - 2
            if along_time and MASK in batch.keys(True):
                batch = torch.cat([without_padding(part) for part in batch.unbind(0)], self.cat)
            elif self.cat in (0, 1 - batch.batch_dims) and is_dense(batch):
                batch = batch.flatten(0, 1)
            else:
                batch = torch.cat(batch.unbind(0), self.cat)
        if batch.names[-1] != "time":
            batch.names = [*[None] * (batch.ndim - 1), "time"]
        return batch


def without_padding(part: TensorDictBase) -> Any:
    """Return the batch of one worker without its padding, and without the mask."""
    if MASK not in part.keys(True):
        return part
    return part[..., (part.get(TRAJECTORY) != -1).reshape(-1, part.shape[-1]).any(0)].exclude(MASK)


def without_marks(batch: TensorDictBase, *, ids: bool) -> TensorDictBase:
    """Remove from a batch the version that the native collector adds, and what TorchRL's collectors never yield.

    The batch itself changes. `ids`: trajectory ids stay.
    """
    if not ids:
        return batch.exclude("collector")
    full = MASK in batch.keys(True) and bool(batch.get(MASK).all())
    return batch.exclude(VERSION, *[MASK] if full else [], inplace=True)
