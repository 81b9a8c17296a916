"""Whole trajectories, put together from rows of frames."""

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, lazy_stack

from rollfleet.data.whole_trajectories import WholeTrajectories, add_batch, flag_last


def test_trajectories_come_in_the_order_of_their_ends_and_padding_is_left_out() -> None:
    trajectories = WholeTrajectories[tuple[int, slice]]()
    ids = np.array([[0, 0, 2, 2], [1, 3, 3, -1]])
    ended = np.array([[False, True, False, False], [True, False, False, False]])
    trajectories.add(ids, ended, lambda row, frames: (row, frames))
    assert trajectories.take(2) == [[(1, slice(0, 1))], [(0, slice(0, 2))]]
    assert trajectories.cut() == [[(0, slice(2, 4))], [(1, slice(1, 3))]]


def test_of_those_under_way_only_the_wanted_are_kept() -> None:
    trajectories = WholeTrajectories[tuple[int, slice]]()
    ended = np.array([[False, True], [False, False], [False, False]])
    trajectories.add(np.array([[0, 0], [1, 1], [2, 2]]), ended, lambda row, frames: (row, frames))
    trajectories.keep(lambda trajectory: trajectory == 2)
    assert trajectories.cut() == [[(2, slice(0, 2))]]
    assert trajectories.take(1) == [[(0, slice(0, 2))]]


def test_the_cut_of_a_lazy_stack_is_marked() -> None:
    frames = [
        TensorDict({"next": {"truncated": torch.zeros(2, 1, dtype=torch.bool)}, "collector": {"traj_ids": ids}}, [2])
        for ids in torch.tensor([[0, 1], [0, 1], [2, 1]])
    ]
    trajectories = WholeTrajectories[Any]()
    add_batch(trajectories, lazy_stack(frames, 1), torch.tensor([[False, True, False], [False, False, False]]))
    cut: list[Any] = [torch.cat(pieces) for pieces in trajectories.cut()]
    for each in cut:
        flag_last(each, [("next", "truncated")])
    assert [each["next", "truncated"].flatten().tolist() for each in cut] == [[True], [False, False, True]]
