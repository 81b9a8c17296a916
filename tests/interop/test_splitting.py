"""`split_trajectories` has the result of TorchRL's function of that name, but for the id of padding."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors.utils import split_trajectories as theirs

from rollfleet.data.splitting import split_trajectories


def batch() -> TensorDict:
    frame = torch.arange(1, 21).reshape(2, 10)
    done = frame % 4 == 0
    ids = frame.reshape(-1).sub(1).div(3, rounding_mode="floor").reshape(2, 10)
    return TensorDict(
        {"frame": frame, "next": {"done": done[..., None], "over": ~done[..., None]}, "episode": ids, "a": {"id": ids}},
        batch_size=[2, 10],
    )


@pytest.mark.parametrize(
    "keywords",
    [{}, {"done_key": "over"}, {"prefix": "mine"}, {"trajectory_key": "episode"}, {"trajectory_key": ("a", "id")}],
    ids=str,
)
def test_frames_are_in_the_same_places(keywords: dict[str, Any]) -> None:
    data = batch()
    if "trajectory_key" in keywords:  # TorchRL joins the end of a row with the next one under the same id
        data["episode"][1] += 100
    expected, found = theirs(data.clone(), **keywords), split_trajectories(data, **keywords)
    assert found.batch_size == expected.batch_size
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    assert torch.equal(found["frame"], expected["frame"])
    assert torch.equal(found["next", "done"], expected["next", "done"])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # once in a process
def test_nested_tensors_pad_to_the_same_frames() -> None:
    expected, found = theirs(batch(), as_nested=True), split_trajectories(batch(), as_nested=True)
    assert found.batch_size == expected.batch_size
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    assert torch.equal(found["frame"].to_padded_tensor(0), expected["frame"].to_padded_tensor(0))
