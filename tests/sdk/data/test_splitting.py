from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rollfleet.data.batch import MASK, TRAJECTORY
from rollfleet.data.splitting import frames_of, split_trajectories
from rollfleet.errors import JobInvalid


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


PIECES: dict[str, tuple[TensorDict, list[list[int]]]] = {
    "an id in two rows, as after `cat_results='time'`": (batch_of([[5, 5], [5, 5]]), [[1, 2], [3, 4]]),
    "an id twice in a row": (batch_of([[5, 6, 5]]), [[1], [2], [3]]),
    "padding": (batch_of([[3, 3, -1, -1], [-1, 4, 4, 4]], mask=True), [[1, 2, 0], [6, 7, 8]]),
    "padding alone": (batch_of([[-1, -1]], mask=True), []),
    "a stack": (
        torch.stack([batch_of([[1, 1], [2, 3]]), batch_of([[4, 4], [5, 5]])]),
        [[1, 2], [3, 0], [4, 0], [1, 2], [3, 4]],
    ),
}


@pytest.mark.parametrize("case", PIECES)
def test_a_piece_is_of_one_row_and_without_gaps_and_padding(case: str) -> None:
    batch, pieces = PIECES[case]
    split = split_trajectories(batch)
    assert split["frame"].tolist() == pieces
    assert torch.equal(split[MASK], split["frame"] > 0)


def test_the_result_has_its_own_memory() -> None:
    batch = batch_of([[1, 1, 1]])
    split = split_trajectories(batch)
    split["frame"].zero_()
    assert batch["frame"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("mask", [False, True])
def test_frames_in_a_row_exclude_padding(mask: bool) -> None:
    frames = frames_of(batch_of([[3, -1], [4, 4]], mask=mask))
    assert frames["frame"].tolist() == ([1, 3, 4] if mask else [1, 2, 3, 4])
    assert MASK not in frames.keys(True)


def unmarked(done: list[list[bool]]) -> TensorDict:
    """Return a batch of another source: frames numbered from 1, and flags, without trajectory ids."""
    flags = torch.tensor(done)
    frame = torch.arange(1, flags.numel() + 1).reshape(flags.shape)
    return TensorDict({"frame": frame, "next": {"done": flags[..., None], "over": ~flags}}, batch_size=flags.shape)


def test_a_batch_without_ids_is_cut_after_done_and_gets_ids() -> None:
    split = split_trajectories(unmarked([[False, True, False], [False, False, False]]))
    assert split["frame"].tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6]]
    assert split["traj_ids"].tolist() == [[0, 0, -1], [1, -1, -1], [2, 2, 2]]
    assert split["mask"].tolist() == split["frame"].ne(0).tolist()
    over = split_trajectories(unmarked([[False, True, True]]), done_key="over", prefix="mine")
    assert over["frame"].tolist() == [[1, 0], [2, 3]]
    assert over["mine", "traj_ids"].tolist() == [[0, -1], [1, 1]]


@pytest.mark.parametrize("batch", [None, 5, {"frame": torch.arange(3)}], ids=str)
def test_what_is_no_batch_is_refused(batch: Any) -> None:
    with pytest.raises(JobInvalid, match=r"^batch: expected a TensorDict \[\.\.\., T\], got "):
        split_trajectories(batch)


def test_a_batch_without_ids_and_flags_is_refused() -> None:
    with pytest.raises(JobInvalid, match=r"no trajectory ids \('traj_ids',\), and no flags \('next', 'done'\)"):
        split_trajectories(TensorDict({"frame": torch.arange(3)}, batch_size=[3]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [True, torch.strided, torch.jagged])
@pytest.mark.parametrize(
    ("ids", "pieces"),
    [([[3, 3, -1, -1], [4, 5, 5, 5]], [[1, 2], [5], [6, 7, 8]]), ([[3, 3, 3], [4, 4, 4]], [[1, 2, 3], [4, 5, 6]])],
    ids=["several lengths", "one length"],
)
def test_nested_tensors_have_the_same_pieces_without_padding(
    layout: bool | torch.layout, ids: list[list[int]], pieces: list[list[int]]
) -> None:
    nested = split_trajectories(batch_of(ids, mask=True), as_nested=layout)
    assert len(nested) == len(pieces)
    assert [piece.tolist() for piece in nested["frame"].unbind()] == pieces
    assert nested["frame"].layout is (torch.jagged if layout is torch.jagged else torch.strided)
    assert MASK not in nested.keys(True)


@pytest.mark.parametrize("keyword", ["prefix", "trajectory_key", "done_key", "as_nested"])
@pytest.mark.parametrize("value", [5, b"x", ["ids"], (5,), object()], ids=lambda value: type(value).__name__)
def test_what_is_no_key_and_no_layout_is_refused(keyword: str, value: Any) -> None:
    batch = TensorDict({"frame": torch.arange(3), "next": {"done": torch.zeros(3, dtype=torch.bool)}}, batch_size=[3])
    with pytest.raises(JobInvalid, match=r"expected (a key, such as 'traj_ids', or a tuple|True, False or a layout)"):
        split_trajectories(batch, **{keyword: value})


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0,), (2, 0, 4)])
def test_a_batch_without_frames_has_no_trajectories(shape: tuple[int, ...]) -> None:
    ids = torch.zeros(shape, dtype=torch.int64)
    empty = TensorDict({"image": torch.zeros(*shape, 2, 2), "collector": {"traj_ids": ids}}, batch_size=shape)
    split = split_trajectories(empty)
    assert split.batch_size == (0, 0)
    assert split["image"].shape == (0, 0, 2, 2)
    assert frames_of(empty).batch_size == (0,)
