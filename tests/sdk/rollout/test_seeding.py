"""Seeds of workers, and their streams of random numbers."""

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


def test_no_two_environments_of_a_big_job_share_a_seed() -> None:
    seeds = [seed for worker in range(1000) for seed in Seeds.derive(0, worker, 0, 64).envs]
    assert len(set(seeds)) == 64_000
    assert all(0 <= seed < 1 << 32 for seed in seeds)  # the range of numpy.random.seed


def test_an_environments_seed_does_not_depend_on_their_number() -> None:
    assert Seeds.derive(5, 2, 0, 8).envs[:3] == Seeds.derive(5, 2, 0, 3).envs


def test_seeds_after_a_restore_all_differ_too() -> None:
    first = [Seeds.derive(0, worker, 0, 64) for worker in range(300)]
    for times in (1, 2):
        again = [seed for seeds in first for seed in seeds.again(times).envs]
        assert len(set(again)) == 300 * 64
        assert all(0 <= seed < 1 << 32 for seed in again)
        assert first[0].again(times).envs != first[0].envs
    assert first[0].again(1).envs != first[0].again(2).envs
    assert first[0].again(0) == first[0]


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
