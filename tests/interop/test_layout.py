"""Rollfleet's batches have the keys, shapes and dtypes of those of TorchRL's own collector."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from tests.sdk.rollouts import Sampling
from torch import nn
from torch.distributions import Categorical
from torchrl import collectors, envs, modules

import rollfleet

FRAMES, ENVS = 60, 3
VERSION = ("collector", "policy_version")  # TorchRL has it on request, and calls it ("policy_version",)

Layout = dict[Any, tuple[tuple[int, ...], torch.dtype]]


CAMERA = Dict(
    position=Box(-1, 1, (2,)), image=Box(0, 255, (3, 4, 4), np.uint8), body=Dict(speed=Box(-1, 1, (1,), np.float64))
)
CHOOSING, PULLING = partial(Sampling, CAMERA, Discrete(3), 5), partial(Sampling, CAMERA, MultiDiscrete([3, 4]), 5)


def layout(batch: TensorDict) -> Layout:
    return {key: (tuple(value.shape), value.dtype) for key, value in batch.items(True, True)}


def theirs(make: Callable[[], Any], policy: Any = None, *, num_envs: int = ENVS) -> TensorDict:
    env = envs.SerialEnv(num_envs, make) if num_envs > 1 else make()
    collector = collectors.Collector(
        env, policy, frames_per_batch=FRAMES, total_frames=FRAMES, auto_register_policy_transforms=False
    )
    try:
        (batch,) = [batch.clone() for batch in collector]
    finally:
        collector.shutdown()
    return batch


def ours(env: Any, policy: Any = None, *, num_envs: int = ENVS, **keywords: Any) -> TensorDict:
    with rollfleet.Collector(env, policy, num_envs=num_envs, frames_per_batch=FRAMES, **keywords) as collector:
        batch: TensorDict = next(collector)
    return batch


def cartpole() -> Any:
    return envs.GymEnv("CartPole-v1", categorical_action_encoding=True)


def counted_cartpole() -> Any:
    return envs.TransformedEnv(cartpole(), envs.Compose(envs.StepCounter(), envs.InitTracker()))


@pytest.mark.parametrize(
    ("make", "env", "keywords"),
    [
        (cartpole, "CartPole-v1", {}),
        (lambda: envs.GymEnv("Pendulum-v1"), "Pendulum-v1", {}),
        (lambda: envs.GymWrapper(CHOOSING(), categorical_action_encoding=True), CHOOSING, {}),
        (lambda: envs.GymWrapper(PULLING(), categorical_action_encoding=True), PULLING, {}),
        (counted_cartpole, "CartPole-v1", {"step_count": True, "is_init": True}),
    ],
    ids=["CartPole", "Pendulum", "Dict", "MultiDiscrete", "step_count and is_init"],
)
def test_keys_shapes_and_dtypes_equal_torchrls_collector(
    make: Callable[[], Any], env: Any, keywords: dict[str, Any]
) -> None:
    expected, found = theirs(make), ours(env, **keywords)
    assert found.batch_size == expected.batch_size == (ENVS, FRAMES // ENVS)
    assert found.names == expected.names == [None, "time"]
    mine = layout(found)
    assert mine.pop(VERSION) == ((ENVS, FRAMES // ENVS), torch.int64)
    assert mine == layout(expected)


def test_one_environment_is_a_row_unlike_in_torchrl() -> None:
    expected, found = theirs(cartpole, num_envs=1), ours("CartPole-v1", num_envs=1)
    mine = layout(found[0])
    del mine[VERSION]
    assert mine == layout(expected)


def actor_and_value() -> TensorDictSequential:
    """A stochastic actor and a value, as TorchRL's own examples build them."""
    head = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"])
    actor = modules.ProbabilisticActor(
        head, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True, log_prob_key="action_log_prob"
    )
    return TensorDictSequential(actor, modules.ValueOperator(nn.Linear(4, 1), in_keys=["observation"]))


def test_torchrls_own_actor_adds_the_same_keys_to_both_batches() -> None:
    expected, found = layout(theirs(cartpole, actor_and_value())), layout(ours("CartPole-v1", actor_and_value()))
    del found[VERSION]
    assert found == expected
    assert {"logits", "action_log_prob", "state_value"} <= found.keys()
