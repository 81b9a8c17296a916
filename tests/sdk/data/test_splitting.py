import pytest
import torch
from tensordict import TensorDict

from rollfleet.data.batch import MASK, TRAJECTORY
from rollfleet.data.splitting import frames_of, split_trajectories, trajectories_of


def batch_of(ids: list[list[int]], *, mask: bool = False) -> TensorDict:
    """Return a batch of frames numbered from 1, with a mask that excludes frames with id -1."""
    trajectories = torch.tensor(ids)
    size = list(trajectories.shape)
    frame = torch.arange(1, trajectories.numel() + 1).reshape(size)
    inner = {"traj_ids": trajectories} | ({"mask": trajectories >= 0} if mask else {})
    batch = {"frame": frame, "image": frame[..., None, None].expand(*size, 2, 2).to(torch.uint8), "collector": inner}
    return TensorDict(batch, batch_size=size, names=[None, "time"])


def test_each_row_is_a_piece_of_one_trajectory_in_the_order_of_the_batch() -> None:
    split = split_trajectories(batch_of([[7, 7, 8, 8], [9, 9, 9, 9]]))
    assert split.names == [None, "time"]
    assert split["frame"].tolist() == [[1, 2, 0, 0], [3, 4, 0, 0], [5, 6, 7, 8]]
    assert split["frame"].eq(0).eq(~split[MASK]).all()
    assert split[TRAJECTORY].tolist() == [[7, 7, -1, -1], [8, 8, -1, -1], [9, 9, 9, 9]]
    assert split["image"].dtype is torch.uint8
    assert split["image"].shape == (3, 4, 2, 2)


def test_one_id_in_two_rows_or_twice_in_a_row_makes_two_pieces() -> None:
    """As after `cat_results="time"`, or when an episode continues in the next batch."""
    assert split_trajectories(batch_of([[5, 5], [5, 5]]))["frame"].tolist() == [[1, 2], [3, 4]]
    assert split_trajectories(batch_of([[5, 6, 5]]))["frame"].tolist() == [[1], [2], [3]]


def test_padding_is_in_no_piece() -> None:
    split = split_trajectories(batch_of([[3, 3, -1, -1], [-1, 4, 4, 4]], mask=True))
    assert split["frame"].tolist() == [[1, 2, 0], [6, 7, 8]]
    assert split[MASK].tolist() == [[True, True, False], [True, True, True]]


def test_stacked_batches_are_split_row_by_row() -> None:
    stacked: TensorDict = torch.stack([batch_of([[1, 1], [2, 3]]), batch_of([[4, 4], [5, 5]])])
    assert [int(ids[0]) for ids in split_trajectories(stacked)[TRAJECTORY]] == [1, 2, 3, 4, 5]


def test_the_result_has_its_own_memory() -> None:
    batch = batch_of([[1, 1, 1]])
    split = split_trajectories(batch)
    split["frame"].zero_()
    assert batch["frame"].tolist() == [[1, 2, 3]]


def test_the_flat_form_has_the_same_pieces_without_padding() -> None:
    batch = batch_of([[3, 3, -1, -1], [4, 5, 5, 5]], mask=True)
    pieces = trajectories_of(batch)
    assert [piece["frame"].tolist() for piece in pieces] == [[1, 2], [5], [6, 7, 8]]
    assert [piece.batch_size for piece in pieces] == [(2,), (1,), (3,)]
    split = split_trajectories(batch)
    assert [row[row[MASK]]["frame"].tolist() for row in split] == [piece["frame"].tolist() for piece in pieces]


@pytest.mark.parametrize("mask", [False, True])
def test_frames_in_a_row_exclude_padding(mask: bool) -> None:
    frames = frames_of(batch_of([[3, -1], [4, 4]], mask=mask))
    assert frames["frame"].tolist() == ([1, 3, 4] if mask else [1, 2, 3, 4])
    assert MASK not in frames.keys(True)
