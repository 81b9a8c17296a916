"""The shape of batches whose rows end in padding."""

import math

import pytest
import torch
from tensordict import TensorDict

from rollfleet.data.batch import MASK, TRAJECTORY
from rollfleet.torchrl.batches import BatchShape


def with_a_short_worker(envs: int) -> TensorDict:
    """Return four frames of two workers' environments, `[2, envs, 4]`, of which two of the second are padding."""
    mask = torch.ones(2, envs, 4, dtype=torch.bool)
    mask[1, :, 2:] = False
    collector = {"mask": mask, "traj_ids": torch.where(mask, 0, -1)}
    return TensorDict({"collector": collector}, mask.shape, names=[None, None, "time"])


@pytest.mark.parametrize(
    ("sizes", "cat", "shape"), [((), 0, (6,)), ((), -1, (6,)), ((2,), 1, (2, 6)), ((2,), -1, (2, 6)), ((2,), 0, (4, 4))]
)
def test_workers_are_joined_along_time_without_padding_and_else_with_its_mask(
    sizes: tuple[int, ...], cat: int, shape: tuple[int, ...]
) -> None:
    batch = BatchShape(torch.Size(sizes), cat).of(with_a_short_worker(math.prod(sizes)))
    assert batch.shape == shape
    assert batch.names[-1] == "time"
    padded = shape == (4, 4)
    assert (batch[TRAJECTORY] < 0).any() == padded
    assert (MASK in batch.keys(True)) == padded
