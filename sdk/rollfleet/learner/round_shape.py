"""The shape of a batch whose round may close without some workers: it never depends on which of them were in time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollfleet.data.batch import MASK, NO_TRAJECTORY, TRAJECTORY, pad
from rollfleet_api.job import CollectorJobSpec, Mode

if TYPE_CHECKING:
    from tensordict import TensorDict


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShape:
    """The rows and frames of a round's fragments.

    Attributes:
        workers: The workers that have rows, in order.
        rows: Rows of each worker.
        steps: Frames of each row; 0: as many as in the longest row.
    """

    workers: tuple[int, ...]
    rows: int
    steps: int

    @classmethod
    def of(cls, spec: CollectorJobSpec, workers: tuple[int, ...], steps: int) -> "RoundShape | None":
        """Return the shape of a round of these workers; None: it waits for all of them, and has what they send."""
        if spec.mode is not Mode.SYNC or spec.stragglers.threshold >= 1:
            return None
        trajectories = spec.collect.trajs_per_batch
        return cls(workers=workers, rows=trajectories or spec.env.num_envs, steps=0 if trajectories else steps)

    def filled(self, fragments: "Mapping[int, TensorDict]") -> "list[TensorDict]":
        """Return a fragment of each worker, in order, all with `("collector", "mask")` and rows of the same length.

        Args:
            fragments: What workers sent, `[envs, T]`, at least one. Padding stands for the others.
        """
        steps = max(self.steps, *(fragment.shape[1] for fragment in fragments.values()))
        like = next(iter(fragments.values()))
        return [self._fitted(fragments.get(worker, like[:0]), steps) for worker in self.workers]

    def _fitted(self, fragment: "TensorDict", steps: int) -> "TensorDict":
        rows, own = fragment.shape
        if own < steps:
            fragment = pad(fragment, steps)
        if MASK not in fragment.keys(True):
            fragment[MASK] = torch.ones(rows, steps, dtype=torch.bool, device=fragment.device)
        if rows >= self.rows:
            return fragment
        padded = fragment.new_zeros(self.rows, steps)
        padded.names = fragment.names
        padded[:rows] = fragment
        padded[TRAJECTORY][rows:] = NO_TRAJECTORY
        return padded
