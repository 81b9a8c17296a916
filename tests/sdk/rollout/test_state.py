"""A restored rollout continues with unused ids and with its random numbers."""

import io
from typing import Any

import gymnasium
import pytest
import torch
from torch import Tensor

from rollfleet.data.batch import Fragment, to_batch
from rollfleet.envs.factory import make_env
from rollfleet.policies.actor_critic import ActorCritic
from rollfleet.policies.random_policy import RandomPolicy
from rollfleet.rollout.rollout import Rollout
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet_api.job import CollectSpec, EnvSpec


def coin(observation: Tensor) -> Tensor:
    """Random actions from torch that ignore the observation."""
    return torch.randint(2, (len(observation),))


def noisy(env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> ActorCritic:
    """A policy with a fast form, whose actions do not depend on the observation."""
    policy = ActorCritic(env.single_observation_space, env.single_action_space)
    with torch.no_grad():
        policy.actor[-1].weight.zero_()  # type: ignore[operator]
    return policy


def rollout(policy_of: Any = lambda env: coin, *, seed: int = 1, **options: Any) -> Rollout:
    env = make_env(EnvSpec(id="CartPole-v1", num_envs=3))
    return Rollout(
        env,
        policy_of(env),
        steps=30,
        seeds=Seeds.derive(seed, 2, 0, 3),
        trajectories=TrajectoryIds(2, 0),
        collect=CollectSpec(frames_per_batch=1, **options),
    )


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def restored(state: dict[str, Any], policy_of: Any = lambda env: coin, **options: Any) -> Rollout:
    again = rollout(policy_of, **options)
    again.load_state_dict(saved_and_loaded(state))
    return again


def ids(fragment: Fragment) -> set[int]:
    return set(fragment.steps["collector", "traj_ids"].unique().tolist())


@pytest.mark.parametrize("policy_of", [lambda env: coin, noisy])
@pytest.mark.parametrize("random_actions", [False, True])
def test_random_numbers_continue_after_a_restore(random_actions: bool, policy_of: Any) -> None:
    whole = rollout(policy_of)
    whole.collect(version=0, random_actions=random_actions)
    state = whole.state_dict()
    expected = whole.collect(version=0, random_actions=random_actions).steps["action",]
    again = restored(state, policy_of).collect(version=0, random_actions=random_actions).steps["action",]
    assert torch.equal(again, expected)


def test_ids_are_not_reused_and_new_episodes_have_other_seeds() -> None:
    first = rollout()
    fragments = [first.collect(version=0) for _ in range(2)]
    begun = fragments[0].steps["observation",][:, 0].clone()
    used = ids(fragments[0]) | ids(fragments[1])
    second = restored(first.state_dict())
    fragment = second.collect(version=0)
    third = restored(second.state_dict()).collect(version=0)
    assert not ids(fragment) & used
    assert not ids(third) & (used | ids(fragment))
    starts = torch.cat([begun, fragment.steps["observation",][:, 0], third.steps["observation",][:, 0]])
    assert starts.abs().max() < 0.05  # the range of CartPole's first observations
    assert len(starts.unique(dim=0)) == 9


def test_two_restores_are_the_same_bit_for_bit() -> None:
    first = rollout()
    first.collect(version=0)
    one, two = (to_batch(restored(first.state_dict()).collect(version=0)) for _ in range(2))
    assert (one == two).all()


def test_a_running_rollout_can_be_restored_in_place() -> None:
    first = rollout(trajs_per_batch=2, step_count=True)
    first.collect(version=0)
    state = first.state_dict()
    expected = to_batch(restored(state, trajs_per_batch=2, step_count=True).collect(version=0)).exclude("collector")
    first.load_state_dict(state)
    assert (to_batch(first.collect(version=0)).exclude("collector") == expected).all()


def test_a_state_before_the_first_fragment_changes_nothing() -> None:
    expected = to_batch(rollout().collect(version=0))
    assert (to_batch(restored(rollout().state_dict()).collect(version=0)) == expected).all()


def test_a_state_with_fewer_ids_than_were_taken_is_refused() -> None:
    running = rollout()
    state = running.state_dict()
    running.collect(version=0)
    with pytest.raises(ValueError, match=r"[0-9]+ trajectory ids were taken already; cannot continue at 0"):
        running.load_state_dict(state)
    assert running.state_dict()["trajectories"] > 0


@pytest.mark.parametrize("policy_of", [lambda env: RandomPolicy(env.single_action_space), noisy])
def test_a_reseeded_rollout_equals_a_new_one_with_the_same_policy(policy_of: Any) -> None:
    torch.manual_seed(0)
    policy = policy_of(make_env(EnvSpec(id="CartPole-v1")))
    running, fresh = rollout(lambda env: policy), rollout(lambda env: policy, seed=9)
    running.collect(version=0)
    running.reseed(Seeds.derive(9, 2, 0, 3), TrajectoryIds(2, 0))
    for random_actions in (False, True):
        one, two = (to_batch(each.collect(version=0, random_actions=random_actions)) for each in (running, fresh))
        assert (one == two).all()
