"""From fragments to batches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.sdk.wire.dtypes import DTYPES
from torch import Tensor

from rollfleet.data.batch import EPISODES, IS_INIT, MASK, STEP_COUNT, Fragment, Key, join, to_batch
from rollfleet.data.splitting import split_trajectories
from rollfleet.data.tensor_tree import Group
from rollfleet.errors import MessageCorrupt

OBSERVATION, FLAG = ("observation",), ("next", "terminated")


def fragment(envs: int = 2, time: int = 4) -> Fragment:
    """Observations 0, 1, 2, ... in each row (10, 11, ... in the second); row 0 ends at 1, row 1 at its last frame."""
    terminated, truncated = torch.zeros(2, envs, time, 1, dtype=torch.bool)
    terminated[0, 1] = True
    truncated[-1, -1] = True
    observation = (torch.arange(time) + 10.0 * torch.arange(envs)[:, None])[..., None]
    return Fragment(
        steps={
            OBSERVATION: observation,
            ("action",): torch.zeros(envs, time, dtype=torch.int64),
            ("next", "reward"): torch.ones(envs, time, 1),
            FLAG: terminated,
            ("next", "truncated"): truncated,
            ("collector", "traj_ids"): torch.zeros(envs, time, dtype=torch.int64),
        },
        final={OBSERVATION: torch.tensor([[-1.0], [-2.0], [-3.0]])},
        episodes={name: torch.zeros(1, *shape, dtype=dtype) for name, (dtype, shape) in EPISODES.items()},
        version=7,
    )


def test_next_observations_are_rebuilt_from_the_following_frame_and_the_final_ones() -> None:
    batch = to_batch(fragment())
    assert batch["next", "observation"].squeeze(-1).tolist() == [[1, -1, 3, -2], [11, 12, 13, -3]]
    assert batch["next", "done"].squeeze(-1).tolist() == [[False, True, False, False], [False, False, False, True]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_observations_of_every_dtype_on_the_wire_make_batches(dtype: torch.dtype) -> None:
    def of(change: Callable[[Tensor], Tensor]) -> TensorDict:
        whole = fragment()
        steps = {**whole.steps, OBSERVATION: change(whole.steps[OBSERVATION])}
        return to_batch(replace(whole, steps=steps, final={OBSERVATION: change(whole.final[OBSERVATION].abs())}))

    batch, expected = of(lambda value: value.to(dtype)), of(lambda value: value.to(dtype).to(torch.complex128))
    assert batch["next", "observation"].dtype == dtype
    assert torch.equal(batch["next", "observation"].to(torch.complex128), expected["next", "observation"])
    split = split_trajectories(join([batch, batch]))
    assert split["next", "observation"].dtype == dtype
    assert split.shape == (4, 4)


def with_step(key: Key, change: Callable[[Tensor], Tensor]) -> Fragment:
    whole = fragment()
    return replace(whole, steps={**whole.steps, key: change(whole.steps[key])})


def without(key: Key) -> Fragment:
    whole = fragment()
    return replace(whole, steps={name: value for name, value in whole.steps.items() if name != key})


@pytest.mark.parametrize(
    "hostile",
    [
        replace(fragment(), final={OBSERVATION: torch.zeros(2, 1)}),
        replace(fragment(), final={OBSERVATION: torch.zeros(4, 1)}),
        replace(fragment(), final={OBSERVATION: torch.zeros(3, 2)}),
        replace(fragment(), final={OBSERVATION: torch.zeros(3, 1, dtype=torch.float64)}),
        replace(fragment(), final={OBSERVATION: torch.zeros(())}),
        replace(fragment(), final={}),
        replace(fragment(), final={OBSERVATION: torch.zeros(3, 1), ("other",): torch.zeros(3, 1)}),
        replace(fragment(), final={("action",): torch.zeros(3, dtype=torch.int64)}),
        replace(fragment(), version=-1),
        replace(fragment(), version=1 << 63),
        replace(fragment(), episodes=fragment().episodes | {"returns": torch.zeros(2, dtype=torch.float64)}),
        replace(fragment(), episodes=fragment().episodes | {"returns": torch.zeros(1)}),
        replace(fragment(), episodes=fragment().episodes | {"unknown": torch.zeros(1)}),
        replace(fragment(), episodes={"lengths": torch.zeros(1, dtype=torch.int64)}),
        with_step(FLAG, lambda flags: ~flags),
        with_step(FLAG, lambda flags: flags.int()),
        with_step(FLAG, lambda flags: flags.squeeze(-1)),
        with_step(FLAG, lambda flags: flags.expand(2, 4, 3)),
        with_step(OBSERVATION, lambda value: value[:, :3]),
        with_step(OBSERVATION, lambda value: value[0, 0]),
        with_step(("collector", "traj_ids"), lambda ids: ids[:, :0]),
        with_step(("collector", "traj_ids"), lambda ids: ids[..., None]),
        with_step(("action",), lambda action: action.reshape(8)),
        *(without(key) for key in fragment().steps),
        replace(fragment(), steps={**fragment().steps, ("action", "inner"): torch.zeros(2, 4)}),
        replace(fragment(), steps={("next",): torch.zeros(2, 4), **fragment().steps}),
        replace(fragment(), steps={**fragment().steps, (): torch.zeros(2, 4)}),
        replace(fragment(), steps={**fragment().steps, ("collector", "policy_version"): torch.zeros(2, 4)}),
        replace(fragment(), steps={**fragment().steps, MASK: torch.ones(2, 4)}),
        replace(fragment(), steps={**fragment().steps, MASK: torch.zeros(2, 4, dtype=torch.bool)}),
        replace(fragment(), steps={**fragment().steps, STEP_COUNT: torch.zeros(2, 4, dtype=torch.int64)}),
        replace(fragment(), steps={**fragment().steps, IS_INIT: torch.zeros(2, 4, 1)}),
    ],
)
def test_an_inconsistent_fragment_is_corrupt(hostile: Fragment) -> None:
    with pytest.raises(MessageCorrupt):
        to_batch(hostile)


STACK = Group(path=("agents",), sizes=(1,), dim=2)
AGENTS, TEXT, NUMBERS, SIZES = ("agents", "0", "x"), ("#json", "text"), ("#numbers", "shape"), ("#sizes", "shape")
TREE = replace(
    fragment(1, 2),
    steps={
        ("collector", "traj_ids"): torch.zeros(1, 2, dtype=torch.int64),
        AGENTS: torch.ones(1, 2, 1),
        TEXT: torch.tensor([*b'[["one", 2]]'], dtype=torch.uint8),
        NUMBERS: torch.arange(5.0),
        SIZES: torch.tensor([[1, 2], [3, 1]]),
    },
    final={},
    structure=(STACK,),
)


def test_a_tree_has_agents_text_and_tensors_of_changing_shape() -> None:
    batch = to_batch(TREE)
    assert batch["text"] == [["one", 2]]
    assert [batch[0, t]["shape"].tolist() for t in (0, 1)] == [[[0, 1]], [[2], [3], [4]]]
    assert batch["agents"].batch_size == (1, 2, 1)


@pytest.mark.parametrize(
    ("steps", "other"),
    [
        ({}, {"structure": None}),
        ({}, {"structure": (Group(path=("agents",), sizes=(2,), dim=2),)}),
        ({}, {"structure": (Group(path=("agents", "0"), sizes=(1 << 40,)), STACK)}),
        ({}, {"final": {NUMBERS: torch.zeros(1)}}),
        ({TEXT: torch.tensor([*b'[["one"]]'], dtype=torch.uint8)}, {}),
        ({TEXT: torch.tensor([*b'[["one"'], dtype=torch.uint8)}, {}),
        ({("#json",): torch.zeros(1)}, {}),
        ({SIZES: torch.tensor([[1, 2], [2, 1]])}, {}),
        ({SIZES: torch.tensor([[-1, -2], [3, 1]])}, {}),
        ({SIZES: torch.tensor([[1, 5]])}, {}),
        ({SIZES: torch.zeros(1 << 40, 0, dtype=torch.int64)}, {}),
        ({NUMBERS: torch.zeros(())}, {}),
    ],
)
def test_an_inconsistent_tree_is_corrupt(steps: dict[Key, Tensor], other: dict[str, Any]) -> None:
    with pytest.raises(MessageCorrupt):
        to_batch(replace(TREE, steps={**TREE.steps, **steps}, **other))


def with_padding() -> Fragment:
    """Row 0 ends at its second frame, which is its last; row 1 has all four."""
    whole = fragment()
    steps = {key: value.clone() for key, value in whole.steps.items()}
    for key, value in steps.items():
        value[0, 2:] = -1 if key == ("collector", "traj_ids") else 0
    steps[MASK] = torch.tensor([[True, True, False, False], [True] * 4])
    steps[STEP_COUNT] = torch.tensor([[3, 4, 0, 0], [0, 1, 2, 3]])[..., None]
    steps[IS_INIT] = (steps[STEP_COUNT] == 0) & steps[MASK][..., None]
    return replace(whole, steps=steps, final={OBSERVATION: torch.tensor([[-1.0], [-3.0]])})


def test_padding_is_zero_in_the_batch_and_is_not_counted() -> None:
    batch = to_batch(with_padding())
    assert batch["next", "observation"].squeeze(-1).tolist() == [[1, -1, 0, 0], [11, 12, 13, -3]]
    assert batch["next", "step_count"].squeeze(-1).tolist() == [[4, 5, 0, 0], [1, 2, 3, 4]]
    assert not batch["next", "is_init"].any()
    assert with_padding().frames == 6
    assert fragment().frames == 8


def test_a_row_cut_short_by_its_mask_has_a_final_observation_at_its_end() -> None:
    whole = with_padding()
    whole.steps[FLAG][0, 1] = False
    assert to_batch(whole)["next", "observation"].squeeze(-1).tolist()[0] == [1, -1, 0, 0]
