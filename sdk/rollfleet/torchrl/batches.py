"""A batch of the native collector in the shape of TorchRL's."""

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection

from rollfleet.data.batch import MASK, VERSION

_IDS = ("collector", "traj_ids")


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The shape `[*env.batch_size, T]` of one worker's frames, and how those of several workers are joined.

    Attributes:
        sizes: The batch size of a worker's environments.
        workers: The workers of a batch; None: it is of one worker, and has no dimension of workers.
        cat: The dimension along which workers are concatenated; "stack": a first dimension of workers.
        preempts: Whether slow workers are stopped, so that rows end in padding.
    """

    sizes: torch.Size
    workers: int | None = None
    cat: int | str = "stack"
    preempts: bool = False

    @property
    def native(self) -> str | None:
        """The value of the native `cat_results` that needs the fewest copies; None: one worker."""
        if self.workers is None:
            return None
        dims = len(self.sizes)
        if self.preempts or isinstance(self.cat, str) or dims > 1:
            return "stack"
        return "envs" if dims == 0 or self.cat in (0, -2) else "time"

    def of(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch in this shape. Its memory is the same, unless parts are cut out."""
        if self.workers is None:
            return self._reshaped(batch, ())
        if self.native == "stack":
            batch = self._reshaped(batch, (batch.shape[0],))
            if self.cat == "stack":
                return batch
            parts: Any = batch.unbind(0)
            if self.preempts:
                parts = [self._valid(part) for part in parts]
            return _timed(torch.cat(parts, self.cat))  # type: ignore[arg-type]
        if not self.sizes:  # [workers, T]
            return _timed(batch.reshape(-1))
        return batch

    def _reshaped(self, batch: TensorDictBase, first: tuple[int, ...]) -> TensorDictBase:
        """Return `[*first, *sizes, T]` of `[*first, envs, T]`."""
        dim, dims = len(first), len(self.sizes)
        if dims == 1:
            return batch
        return _timed(batch.squeeze(dim) if not dims else batch.unflatten(dim, self.sizes))

    def _valid(self, part: TensorDictBase) -> TensorDictBase:
        valid = part.get(_IDS) != -1
        while valid.ndim > 1:
            valid = valid.any(0)
        return part[..., valid]


def _timed(batch: TensorDictBase) -> TensorDictBase:
    if batch.names[-1] != "time":
        batch.names = [*[None] * (batch.ndim - 1), "time"]
    return batch


def without_marks(batch: TensorDictBase, *, ids: bool) -> TensorDictBase:
    """Remove from a batch the version that the native collector adds, and what TorchRL's collectors never yield.

    The batch itself changes. `ids`: trajectory ids stay.
    """
    if not ids:
        return batch.exclude("collector")
    collector = batch.get("collector")
    if is_tensor_collection(collector):
        full = MASK in batch.keys(True) and bool(collector.get(MASK[1]).all())
        batch = batch.exclude(VERSION, *[MASK] if full else [], inplace=True)
    return batch
