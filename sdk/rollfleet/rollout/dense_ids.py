"""Dense trajectory ids: 0, 1, 2, ... instead of ids that name the worker."""

from typing import TYPE_CHECKING

import torch

from rollfleet.data.batch import NO_TRAJECTORY, TRAJECTORY
from rollfleet.rollout.trajectory_ids import split

if TYPE_CHECKING:
    from tensordict import TensorDict


class DenseIds:
    """Numbers the trajectories of a run 0, 1, 2, ... in the order of their first batch: a `postproc`.

    A trajectory that continues in its worker's next batch keeps its number. Within a batch, the order is that of the
    original ids: by worker, then by start. Padding keeps -1. Each process of a learner with several numbers its own.

    Example:
        >>> from rollfleet import Collector
        >>> from rollfleet.rollout.dense_ids import DenseIds
        >>> with Collector("CartPole-v1", num_envs=2, frames_per_batch=4, seed=5, postproc=DenseIds()) as collector:
        ...     next(collector)["collector", "traj_ids"].tolist()
        [[0, 0], [1, 1]]

    Attributes:
        count: Number of trajectories so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._numbers: dict[int, int] = {}  # of the trajectories in the last batch of each worker

    def __call__(self, batch: "TensorDict") -> "TensorDict":
        """Replace the ids of a batch `[..., T]` in place, and return it. Call it once for each batch, in order."""
        ids = batch.get(TRAJECTORY)
        present, places = torch.unique(ids, return_inverse=True)
        here = dict.fromkeys(present.tolist())
        here.pop(NO_TRAJECTORY, None)
        workers = {split(each)[0] for each in here}
        kept = {each: number for each, number in self._numbers.items() if each in here or split(each)[0] not in workers}
        new = [each for each in here if each not in kept]
        self._numbers = kept | {each: number for number, each in enumerate(new, start=self.count)}
        self.count += len(new)
        numbers = [self._numbers.get(each, NO_TRAJECTORY) for each in present.tolist()]
        return batch.set(TRAJECTORY, present.new_tensor(numbers)[places])
