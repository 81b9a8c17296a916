"""Nested spaces, and leaves of every kind, of policies and of actions. (`test_numbers` has them in observations.)"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from tests.sdk.rollout.robot import ACTIONS, Robot
from tests.sdk.rollouts import Sampling, rollout_of
from torch import Tensor

from rollfleet.data.batch import to_batch
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.spaces import supported
from rollfleet.errors import EnvironmentInvalid, PolicyInvalid
from rollfleet.policies.random_policy import RandomPolicy, UniformActions


def test_a_policy_sees_and_returns_dicts_and_tuples() -> None:
    def policy(observation: Any) -> dict[str, Any]:
        assert isinstance(observation["pair"], tuple)
        first, second = observation["pair"]
        keys = (5 + first % 3, observation["arm"]["touch"][:, :2], second % torch.tensor([4, 2]))
        return {"action": {"move": observation["arm"]["angle"] / 9, "keys": keys}, "seen": first}

    batch = to_batch(rollout_of(SerialVectorEnv([Robot] * 2), policy).collect(version=0))
    assert torch.equal(batch["seen"], batch["pair", "0"])
    assert torch.equal(batch["action", "keys", "1"], batch["arm", "touch"][..., :2])
    assert torch.equal(batch["action", "move"], (batch["arm", "angle"] / 9).float())


def test_a_tensordict_module_reads_and_writes_nested_keys() -> None:
    def act(angle: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        n = len(first)
        return angle.float() / 9, 5 + first % 3, torch.zeros(n, 2).to(torch.int8), torch.zeros(n, 2).long(), first + 1

    keys = ("action", "keys")
    module = TensorDictModule(
        act,
        in_keys=[("arm", "angle"), ("pair", "0")],
        out_keys=[("action", "move"), (*keys, "0"), (*keys, "1"), (*keys, "2"), ("arm", "more")],
    )
    batch = to_batch(rollout_of(SerialVectorEnv([Robot] * 2), module).collect(version=0))
    assert torch.equal(batch["action", "keys", "0"], 5 + batch["pair", "0"] % 3)
    assert torch.equal(batch["arm", "more"], batch["pair", "0"] + 1)


def test_random_actions_of_a_nested_space_are_in_the_batch_with_their_log_probability() -> None:
    def policy(observation: Any) -> dict[str, Any]:
        return {**RandomPolicy(ACTIONS)(observation), "action_log_prob": torch.zeros(2)}

    rollout = rollout_of(SerialVectorEnv([Robot] * 2), policy, steps=100)
    batch = to_batch(rollout.collect(version=0, random_actions=True))
    assert (batch["action", "move"].dtype, batch["action", "move"].shape) == (torch.float32, (2, 100, 2))
    assert batch["action", "keys", "1"].dtype == torch.int8
    assert len(batch["action", "keys", "2"].reshape(-1, 2).unique(dim=0)) == 8
    expected = -np.log(2 * 2) - np.log(3) - np.log(2 * 2) - np.log(4 * 2)
    assert torch.allclose(batch["action_log_prob"], torch.tensor(expected).float())


@pytest.mark.parametrize(
    "actions",
    [MultiDiscrete([3, 2], start=[1, -4]), MultiBinary((2, 2)), Discrete(3, start=7), Box(0, 9, (2,), np.int32)],
)
def test_leaves_of_every_kind_are_actions_and_observations(actions: Any) -> None:
    env = SerialVectorEnv([lambda: Sampling(actions, actions)] * 3)
    batch = to_batch(rollout_of(env, RandomPolicy(actions), steps=30).collect(version=0, random_actions=True))
    for value in (batch["observation"], batch["action"], batch["next", "observation"]):
        assert all(np.asarray(row) in actions for row in value.flatten(0, 1).numpy())
        assert len(value.flatten(0, 1).unique(dim=0)) > 2


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize(
    ("space", "key"),
    [
        (Dict(only=Box(0, 1, (2,))), ("only",)),
        (Dict(only=Box(0, 1, (0,))), ("only",)),
        (Tuple((Box(0, 1, (2,)),)), ("observation", "0")),
    ],
    ids=["Dict", "of-no-elements", "Tuple"],
)
def test_a_dict_or_tuple_of_one_leaf_stays_nested(mode: AutoresetMode, space: Any, key: tuple[str, ...]) -> None:
    actions = Tuple((Discrete(2),))
    env = SyncVectorEnv([lambda: Sampling(space, actions)] * 3, autoreset_mode=mode)
    batch = to_batch(rollout_of(env).collect(version=0))
    assert torch.equal(batch[key][:, 1:], batch["next", *key][:, :-1])
    assert batch["action", "0"].shape == (3, 8)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Text(4), r"robot: observation space Text.* is not supported; Box, Discrete, MultiDiscrete"),
        (Dict({"a": Dict({"b": Text(4)})}), r"at \['a', 'b'\] is not supported"),
        (gymnasium.spaces.Sequence(Discrete(2)), "is not supported"),
        (Dict({}), "observation space .* is empty"),
        (Dict({"next": Discrete(2)}), "'next' is reserved in a batch"),
        (Dict({"step_count": Discrete(2)}), "'step_count' is reserved in a batch"),
        (Dict({1: Discrete(2)}), "names in a Dict must be strings"),  # type: ignore[dict-item]
        (Box(0, 1, (1,), np.float128), "float128, which torch does not support"),
        (Box(0, 1, (1,), ">f4"), ">f4, which torch does not support"),  # type: ignore[arg-type]
        ("Box", "'Box' is not a gymnasium.Space"),
    ],
)
def test_unsupported_spaces_are_refused(space: object, message: str) -> None:
    with pytest.raises(EnvironmentInvalid, match=message):
        supported(space, "observation", "robot")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda action: torch.zeros(2), "returned 'action'; the action space has ..action., .keys., .0.."),
        (lambda action: {"action": {"move": action["move"]}}, "but no .'action', 'keys', '0'."),
        (lambda action: {"action": {**action, "jump": action["move"]}}, "'jump'.; the action space has"),
        (
            lambda action: {"action": {**action, "move": action["move"][:, 0]}},
            r"'move'. has shape \[2\]; expected float32",
        ),
        (lambda action: {"action": action, "image": torch.zeros(2)}, "returned 'image', which is reserved in a batch"),
        (
            lambda action: {"action": action, ("image", "y"): torch.zeros(2)},
            r"key \('image', 'y'\) lies inside 'image'",
        ),
    ],
)
def test_invalid_outputs_for_a_nested_space_are_refused(change: Callable[[Any], object], message: str) -> None:
    def policy(observation: Any) -> object:
        return change(RandomPolicy(ACTIONS)(observation)["action"])

    with pytest.raises(PolicyInvalid, match=message):
        rollout_of(SerialVectorEnv([Robot] * 2), policy).collect(version=0)


def test_all_elements_are_drawn_equally_often() -> None:
    torch.manual_seed(0)
    space = Tuple((Discrete(3, start=-1), MultiDiscrete([2, 4]), MultiBinary(2), Box(-1, 1, (1,), np.int8)))
    actions, _ = UniformActions(space).sample(30_000)
    for column in torch.cat([leaf.reshape(30_000, -1).long() for leaf in actions], 1).unbind(1):
        _, counts = column.unique(return_counts=True)
        torch.testing.assert_close(counts / 30_000, torch.full((len(counts),), 1 / len(counts)), atol=0.02, rtol=0)
    assert [len(leaf.unique(dim=0)) for leaf in actions] == [3, 8, 4, 3]
