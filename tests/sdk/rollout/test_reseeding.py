"""A rollout with new seeds begins again."""

from typing import Any

import gymnasium
import pytest
import torch
from tests.sdk.rollouts import rollout_of

from rollfleet.data.batch import to_batch
from rollfleet.envs.factory import make_env
from rollfleet.policies.actor_critic import ActorCritic
from rollfleet.policies.random_policy import RandomPolicy
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet_api.job import EnvSpec

POLES = EnvSpec(id="CartPole-v1", num_envs=3)


def noisy(env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> ActorCritic:
    """A policy with a fast form, whose actions do not depend on the observation."""
    policy = ActorCritic(env.single_observation_space, env.single_action_space)
    with torch.no_grad():
        policy.actor[-1].weight.zero_()  # type: ignore[operator]
    return policy


@pytest.mark.parametrize("policy_of", [lambda env: RandomPolicy(env.single_action_space), noisy])
def test_a_reseeded_rollout_equals_a_new_one_with_the_same_policy(policy_of: Any) -> None:
    torch.manual_seed(0)
    policy = policy_of(make_env(POLES))
    running, fresh = (rollout_of(POLES, policy, steps=30, seed=seed, worker=2) for seed in (1, 9))
    running.collect(version=0)
    running.reseed(Seeds.derive(9, 2, 0, 3), TrajectoryIds(2, 0))
    for random_actions in (False, True):
        one, two = (to_batch(each.collect(version=0, random_actions=random_actions)) for each in (running, fresh))
        assert (one == two).all()
