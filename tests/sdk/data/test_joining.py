"""How the fragments of workers become one batch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from rollfleet.data.batch import MASK, TRAJECTORY, join
from rollfleet.errors import JobInvalid
from rollfleet_api.job import CatResults


def fragment(worker: int, envs: int = 2, time: int = 3) -> TensorDict:
    frames = 100 * (worker + 1) + torch.arange(envs * time).reshape(envs, time)
    ids = torch.full((envs, time), worker)
    batch = {"frame": frames, "collector": {"traj_ids": ids}}
    return TensorDict(batch, batch_size=[envs, time], names=[None, "time"])


@pytest.mark.parametrize(
    ("how", "shape", "names", "part_of"),
    [
        (CatResults.ENVS, (6, 3), [None, "time"], lambda batch, worker: batch[2 * worker : 2 * worker + 2]),
        (CatResults.TIME, (2, 9), [None, "time"], lambda batch, worker: batch[:, 3 * worker : 3 * worker + 3]),
        (CatResults.STACK, (3, 2, 3), [None, None, "time"], lambda batch, worker: batch[worker]),
    ],
)
def test_fragments_are_joined_as_asked_in_the_order_of_the_workers(
    how: CatResults, shape: tuple[int, ...], names: list[str | None], part_of: Callable[[TensorDict, int], TensorDict]
) -> None:
    fragments = [fragment(worker) for worker in range(3)]
    batch = join(fragments, how)
    assert (batch.batch_size, batch.names) == (shape, names)
    for worker in range(3):
        assert torch.equal(part_of(batch, worker)["frame"], fragments[worker]["frame"])
    assert MASK not in batch.keys(True)


@pytest.mark.parametrize(
    ("how", "reference"),
    [
        (CatResults.ENVS, partial(torch.cat, dim=0)),
        (CatResults.TIME, partial(torch.cat, dim=1)),
        (CatResults.STACK, partial(torch.stack, dim=0)),
    ],
)
def test_joining_does_what_torch_does_in_memory_that_is_given_to_it(how: CatResults, reference: Any) -> None:
    given: list[torch.Tensor] = []

    def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        given.append(torch.empty(tuple(shape), dtype=dtype))
        return given[-1]

    fragments = [fragment(worker) for worker in range(2)]
    for each in fragments:
        each.names = [None, None]
        each["agents"] = TensorDict({"seen": torch.rand(2, 3, 4, 5).half()}, batch_size=[2, 3, 4])
        each["text"] = NonTensorData("north", batch_size=[2, 3])
        each["port"] = torch.full((2, 3), 65_535, dtype=torch.uint16)
    joined, expected = join(fragments, how, empty=empty), reference(fragments)
    assert list(joined.keys(True, True)) == list(expected.keys(True, True))
    assert joined["agents"].batch_size == expected["agents"].batch_size
    assert joined["text"] == expected["text"]
    places = {each.data_ptr() for each in given}
    for key in ("frame", ("collector", "traj_ids"), ("agents", "seen"), "port"):
        assert torch.equal(joined[key], expected[key])
        assert joined[key].data_ptr() in places


@pytest.mark.parametrize("how", list(CatResults))
def test_a_shorter_fragment_is_padded_and_masked(how: CatResults) -> None:
    batch = join([fragment(0), fragment(1, time=1)], how)
    assert (batch.numel(), batch.names[-1]) == (12, "time")
    mask = batch[MASK]
    assert int(mask.sum()) == 8
    assert (batch["frame"][~mask] == 0).all()
    assert (batch[TRAJECTORY][~mask] == -1).all()
    assert sorted(batch["frame"][mask].tolist()) == [*range(100, 106), 200, 201]


def test_a_mask_of_one_fragment_survives_the_padding_to_a_longer_one_which_gets_a_mask() -> None:
    masked = fragment(1)
    masked[MASK] = torch.tensor([[True, True, False], [True, False, False]])
    batch = join([fragment(0, time=4), masked], CatResults.ENVS)
    assert batch[MASK].sum(1).tolist() == [4, 4, 2, 1]


def test_a_single_fragment_is_returned_as_it_is() -> None:
    only = fragment(0)
    assert join([only], CatResults.ENVS) is only
    assert join([only], CatResults.STACK).batch_size == (1, 2, 3)


@pytest.mark.parametrize("how", [CatResults.TIME, CatResults.STACK])
def test_workers_with_different_numbers_of_environments_are_joined_along_environments_only(how: CatResults) -> None:
    fragments = [fragment(0, envs=2), fragment(1, envs=3)]
    with pytest.raises(JobInvalid, match=r"workers with 2, 3 environments cannot be joined .* cat_results 'envs'"):
        join(fragments, how)
    assert join(fragments, CatResults.ENVS).batch_size == (5, 3)


@pytest.mark.parametrize("how", list(CatResults))
def test_fragments_of_different_environments_are_refused_by_the_key_that_differs(how: CatResults) -> None:
    one, more, other = fragment(0), fragment(1), fragment(1)
    more["state_value"] = torch.zeros(2, 3, 1)
    other["frame"] = other["frame"].float()
    with pytest.raises(JobInvalid, match=r"0 and 1 .*'state_value' is missing in one and torch.float32 \[3, 1\]"):
        join([one, more], how)
    with pytest.raises(JobInvalid, match=r"'frame' is torch.float32 \[3\]"):
        join([other, one], how)
