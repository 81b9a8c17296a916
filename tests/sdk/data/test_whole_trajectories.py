"""Whole trajectories, put together from batches of frames."""

import torch
from tensordict import TensorDict, lazy_stack

from rollfleet.data.whole_trajectories import WholeTrajectories


def test_the_cut_of_a_lazy_stack_is_marked() -> None:
    frames = [
        TensorDict({"next": {"truncated": torch.zeros(2, 1, dtype=torch.bool)}, "collector": {"traj_ids": ids}}, [2])
        for ids in torch.tensor([[0, 1], [0, 1], [2, 1]])
    ]
    trajectories = WholeTrajectories()
    trajectories.add(lazy_stack(frames, 1), torch.tensor([[False, True, False], [False, False, False]]))
    trajectories.cut([("next", "truncated")])
    flags = [each["next", "truncated"].flatten().tolist() for each in trajectories._whole]
    assert sorted(flags) == [[False, False], [False, False, True], [True]]
