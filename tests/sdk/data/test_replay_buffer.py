from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rollfleet.data.replay_buffer import ReplayBuffer
from rollfleet.errors import JobInvalid


def frames(*numbers: int) -> TensorDict:
    number = torch.tensor(numbers)
    return TensorDict({"n": number, "next": {"x": number.float().unsqueeze(-1)}}, batch_size=[len(numbers)])


def held(buffer: ReplayBuffer) -> set[int]:
    return set(buffer.sample(1000)["n"].tolist())


def test_the_newest_frames_stay() -> None:
    buffer = ReplayBuffer(4)
    buffer.extend(frames(0, 1, 2))
    assert (len(buffer), held(buffer)) == (3, {0, 1, 2})
    buffer.extend(frames(3, 4, 5))
    assert (len(buffer), held(buffer)) == (4, {2, 3, 4, 5})
    buffer.extend(frames(*range(6, 16)))
    assert (len(buffer), buffer.write_count, held(buffer)) == (4, 16, {12, 13, 14, 15})
    buffer.extend(frames(16))
    assert held(buffer) == {13, 14, 15, 16}


def test_a_batch_is_stored_frame_by_frame_without_its_padding() -> None:
    buffer = ReplayBuffer(20)
    buffer.extend(frames(*range(6)).reshape(2, 3))
    assert (len(buffer), held(buffer)) == (6, set(range(6)))
    assert buffer.sample(4).batch_size == (4,)
    padded = frames(*range(6, 12)).reshape(2, 3)
    padded["collector", "mask"] = torch.tensor([[True, True, False], [True, False, False]])
    buffer.extend(padded)
    assert held(buffer) == {0, 1, 2, 3, 4, 5, 6, 7, 9}
    buffer.extend(padded[1])
    assert buffer.write_count == 10


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda _: ReplayBuffer(0), "capacity: must be at least 1, got 0"),
        (lambda _: ReplayBuffer("a"), "capacity: expected an int, got 'a'"),  # type: ignore[arg-type]
        (lambda _: ReplayBuffer(8, device="cuda:99"), "`device`: this machine has no device 'cuda:99'"),
        (lambda buffer: buffer.sample(-1), "count: must be at least 0, got -1"),
        (lambda buffer: buffer.sample(2.0), "count: expected an int, got 2.0"),
        (lambda buffer: buffer.sample(2, 5), "generator: expected a torch.Generator, got 5"),
        (lambda buffer: buffer.extend(5), "stores frames as a TensorDict .*, not 5"),
        (lambda buffer: buffer.extend(TensorDict({}, [3])), "stores frames as a TensorDict .* with keys"),
        (lambda buffer: buffer.extend(TensorDict({"n": [0], "t": ["a"]}, [1])), r"stores tensors, and \['t'\] are not"),
        (
            lambda buffer: buffer.load_state_dict({"frames": {"m": torch.zeros(1)}, "write_count": 1}),
            r"in \['m', 'n', 'next.x'\]",
        ),
        (lambda buffer: buffer.load_state_dict({}), "expected the state_dict of a ReplayBuffer, got {}"),
        (lambda buffer: buffer.load_state_dict(5), "expected the state_dict of a ReplayBuffer, got 5"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(use: Callable[[Any], Any], message: str) -> None:
    buffer = ReplayBuffer(8)
    buffer.extend(frames(1))
    with pytest.raises(JobInvalid, match=message) as raised:
        use(buffer)
    assert "\n" not in str(raised.value)
    assert held(buffer) == {1}


def test_numbers_of_numpy_are_numbers() -> None:
    buffer = ReplayBuffer(np.int64(2))  # type: ignore[arg-type]
    buffer.extend(frames(1, 2, 3))
    assert len(buffer.sample(np.uint8(5))) == 5  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_unsigned_numbers_that_torch_cannot_index_are_sampled(dtype: torch.dtype) -> None:
    buffer = ReplayBuffer(4)
    for number in range(60_000, 60_006):
        buffer.extend(TensorDict({"n": torch.tensor([number]).to(dtype)}, [1]))
    assert buffer.sample(8)["n"].dtype is dtype
    assert held(buffer) == {60_002, 60_003, 60_004, 60_005}
    assert buffer.state_dict()["frames"]["n"].tolist() == [60_002, 60_003, 60_004, 60_005]
