"""`torch.set_default_device`, as for a learner on a GPU, changes no batch. The device "meta" has no values to read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from tests.job_server import actor_critic
from tests.sdk.batches import assert_same
from tests.sdk.places import Collect
from tests.sdk.rollout.recurrent_policy import Recurrent

from rollfleet import Collector, RandomPolicy, ReplayBuffer
from rollfleet.data.splitting import split_trajectories

SMALL: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 64, "seed": 3}


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


def actor() -> Any:
    torch.manual_seed(0)
    return actor_critic()


def argmax(observation: torch.Tensor) -> torch.Tensor:
    return observation[:, 2].gt(0).long()


@pytest.mark.parametrize(
    ("policy", "keywords"),
    [
        (lambda: None, {}),
        (lambda: argmax, {"step_count": True, "is_init": True, "set_truncated": True}),
        (actor, {"max_frames_per_traj": 7, "init_random_frames": 64}),
        (actor, {"trajs_per_batch": 3, "exploration": "mode"}),
        (actor, {"reset_when_done": False, "postproc": split_trajectories}),
        (Recurrent, {"is_init": True}),
        (lambda: TensorDictModule(argmax, in_keys=["observation"], out_keys=["action"]), {}),
    ],
    ids=["random", "callable", "ActorCritic", "trajectories", "padding", "recurrent", "TensorDictModule"],
)
def test_batches_are_the_same(collect: Collect, policy: Callable[[], Any], keywords: dict[str, Any]) -> None:
    expected = list_of(collect("CartPole-v1", policy(), **SMALL | collect.alone | keywords))
    built = policy()
    with default_device("meta"):
        found = list_of(collect("CartPole-v1", built, **SMALL | collect.alone | keywords))
    for mine, theirs in zip(found, expected, strict=True):
        assert_same(mine, theirs)


def list_of(collector: Collector) -> list[TensorDict]:
    return [next(collector) for _ in range(2)]


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([2, 3]), Box(-1, 1, (2,)), Box(0, float("inf"), (2,))])
def test_random_actions_are_drawn(space: gymnasium.Space[Any]) -> None:
    with default_device("meta"):
        assert RandomPolicy(space)(torch.zeros(3, 4, device="cpu")).device.type == "cpu"


def test_a_replay_buffer_is_filled_and_drawn_from(collect: Collect) -> None:
    with default_device("meta"):
        buffer, copied = ReplayBuffer(100), ReplayBuffer(100)
        list_of(collect("CartPole-v1", replay_buffer=buffer, **SMALL))
        sample = buffer.sample(16)
        copied.load_state_dict(buffer.state_dict())
    assert sample["observation"].abs().sum() > 0
    assert len(copied) == len(buffer) == 100


@pytest.mark.parametrize("keywords", [{"trajs_per_batch": 1}, {"stragglers_threshold": 0.5}], ids=str)
def test_padding_of_several_workers_is_on_their_device(apart: Collect, keywords: dict[str, Any]) -> None:
    collector = apart("CartPole-v1", **SMALL | keywords)
    with default_device("meta"):
        batches = list_of(collector)
    assert {value.device.type for batch in batches for value in batch.values(True, True)} == {"cpu"}


def test_a_batch_is_split(here: Collect) -> None:
    batch = next(here("CartPole-v1", **SMALL))
    with default_device("meta"):
        padded, nested = split_trajectories(batch), split_trajectories(batch, as_nested=torch.jagged)
    assert len(padded) == len(nested)
    assert int(padded["collector", "mask"].sum()) == 64
    assert nested["observation"].device.type == "cpu"
