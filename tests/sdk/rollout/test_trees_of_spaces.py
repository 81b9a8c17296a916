"""Nested spaces, images and hidden states: every transport gives the same batch as this process."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, MultiDiscrete
from tests.sdk.batches import assert_same, several
from tests.sdk.places import Collect
from tests.sdk.rollout.recurrent_policy import Recurrent
from tests.sdk.rollout.robot import ACTIONS, Robot
from tests.sdk.rollouts import Observing

from rollfleet import ActorCritic, Collector
from rollfleet.policies.random_policy import RandomPolicy

SMALL: dict[str, Any] = {"num_envs": 2, "seed": 4}


def test_random_actions_of_a_tree_are_those_of_this_process(collect: Collect) -> None:
    keywords = SMALL | {"frames_per_batch": 12}
    expected = several(Collector(Robot, RandomPolicy(ACTIONS), **keywords))
    assert_same(several(collect(Robot, RandomPolicy(ACTIONS), **keywords, **one(collect))), expected)


class Seeing(Observing):
    """Observes a Dict with an image, drawn from the seed; two choices at once."""

    observation_space = Dict(image=Box(0, 255, (3, 4, 4), np.uint8), speed=Box(-1, 1, (2,)))
    action_space = MultiDiscrete([3, 4])
    length = 3

    def seen(self) -> dict[str, Any]:
        image = self.np_random.integers(0, 256, (3, 4, 4), np.uint8)
        return {"image": image, "speed": self.np_random.random(2, np.float32)}


def test_the_built_in_policy_acts_on_images_and_vectors_as_in_this_process(collect: Collect) -> None:
    torch.manual_seed(0)
    policy = ActorCritic(Seeing.observation_space, Seeing.action_space)
    keywords = SMALL | {"frames_per_batch": 16}
    found = several(collect(Seeing, policy, **keywords, **one(collect)))
    assert_same(found, several(Collector(Seeing, policy, **keywords)))
    assert found["image"].dtype == torch.uint8


def test_a_hidden_state_spans_batches_and_is_initial_at_an_episodes_begin(collect: Collect) -> None:
    policy = Recurrent()
    keywords: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 40 * collect.workers, "is_init": True}
    batch = several(collect("CartPole-v1", policy, env_kwargs={"max_episode_steps": 35}, **keywords), 5)
    assert batch["is_init"][:, 1:].any()
    assert not batch["is_init"][:, 20::20].all()  # episodes span batches
    policy.assert_replayed(batch, torch.zeros_like(batch["recurrent", "state"][:, 0]))


def one(collect: Collect) -> dict[str, Any]:
    """One worker on each transport, as in this process."""
    return {} if collect.workers == 1 else {"workers": 1}
