"""One round of mode Sync: which workers it waits for, which fragments make its batch, and the shape of the batch."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollfleet.data.batch import MASK, NO_TRAJECTORY, TRAJECTORY, pad
from rollfleet.transports.learner_side import Arrival
from rollfleet_api.job import CollectorJobSpec, Mode

if TYPE_CHECKING:
    from tensordict import TensorDict


class Round:
    """An open round on rank 0. It does no I/O, and reads no clock.

    A round waits for the workers that were members when it opened, less those that leave while it is open, or that had
    not begun when it was closed.

    Example:
        >>> round_ = Round(frozenset({0, 1}), enough=1)
        >>> sorted(round_.missing), round_.has_enough
        ([0, 1], False)

    Args:
        members: The workers whose fragments come to this rank.
        enough: The number of fragments that may close the round.

    Attributes:
        fragments: What has come, by worker.
    """

    def __init__(self, members: frozenset[int], *, enough: int) -> None:
        self._members = self._counted = members
        self._enough = enough
        self.fragments: dict[int, Arrival] = {}

    @property
    def missing(self) -> frozenset[int]:
        """The workers that the round still waits for."""
        return self._members - self.fragments.keys()

    @property
    def has_enough(self) -> bool:
        """Whether this rank has the fragments that may close the round."""
        enough = len(self.fragments.keys() & self._counted) >= self._enough
        return enough or (not self.missing and len(self.fragments) > 0)

    def add(self, arrival: Arrival) -> None:
        """Add a worker's fragment."""
        self.fragments[arrival.worker] = arrival

    def release(self, workers: Set[int]) -> None:
        """Stop waiting for these workers."""
        self._members -= workers

    def reopen(self, members: frozenset[int]) -> None:
        """Wait for these workers instead: all the others left before they had sent."""
        self._members = self._counted = members

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers that have rows in the batch, in order, also if they have sent nothing."""
        return tuple(sorted(self._counted if self.fragments.keys() & self._counted else self.fragments.keys()))

    def result(self) -> tuple[list[Arrival], list[Arrival]]:
        """Return the fragments that make the batch, in the order of their workers, and the rest.

        A worker that joined after the frames had been divided among the members brings too many. Its fragment counts
        only if all of them left.
        """
        counted = self.fragments.keys() & self._counted or self.fragments.keys()
        late = self.fragments.keys() - counted
        return [self.fragments[each] for each in sorted(counted)], [self.fragments[each] for each in sorted(late)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShape:
    """The rows and frames of a round's fragments.

    If a round may close without some workers, its batch has the same shape whichever of them were in time.

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
            fragment[MASK] = torch.ones(rows, steps, dtype=torch.bool, device=fragment[TRAJECTORY].device)
        if rows >= self.rows:
            return fragment
        padded = fragment.new_zeros(self.rows, steps)
        padded.names = fragment.names
        padded[:rows] = fragment
        padded[TRAJECTORY][rows:] = NO_TRAJECTORY
        return padded
