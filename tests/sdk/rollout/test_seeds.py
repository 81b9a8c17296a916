"""Seeds of workers: which ones there are, those of global generators in processes, and one seed for all."""

import random
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict
from tests.sdk.places import Collect
from tests.sdk.rollouts import Observing, rollout_of
from torch import Tensor

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


class Drawing(Observing):
    """Observes one number of each global generator."""

    observation_space = Box(0, 1, (3,), np.float64)

    def seen(self) -> Any:
        return np.array([random.random(), np.random.rand(), float(torch.rand(()))])


def drawn(collector: Any) -> torch.Tensor:
    """Return the first observations of three batches, [environments, frames, 3]."""
    return torch.cat([batch["observation"].clone() for batch in islice(collector, 3)], 1)


def assert_all_differ(seen: Tensor) -> None:
    for numbers in seen.unbind(-1):
        assert len(numbers.unique()) == numbers.numel()


def test_no_two_environments_draw_the_same_numbers_in_processes_of_their_own(here: Any) -> None:
    assert_all_differ(drawn(here(Drawing, num_envs=3, frames_per_batch=24, seed=5, vectorization="async")))


@pytest.mark.parametrize("options", [{}, {"vectorization": "async"}], ids=["sync", "async"])
def test_a_seed_gives_each_environment_of_processes_its_own_numbers_and_the_same_again(
    processes: Collect, options: dict[str, Any]
) -> None:
    one, same, other = (drawn(processes(Drawing, seed=seed, **SMALL, **options)) for seed in (5, 5, 6))
    assert_all_differ(one)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    collector = processes(Drawing, seed=6, **SMALL, **options)
    next(collector)
    collector.set_seed(5)
    assert torch.equal(drawn(collector), one)


SMALL: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 32}


def sampler(observation: Tensor) -> Tensor:
    return torch.randint(2, (len(observation),))


class ShowsSeed(Observing):
    """Observes the seed of its last reset that had one."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    _last: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._last = self._last if seed is None else seed
        return super().reset(seed=seed)

    def seen(self) -> Any:
        return np.array([self._last])


def seeds_of(batch: TensorDict) -> Tensor:
    seeds: Tensor = batch["observation"][:, 0, 0]
    return seeds


def test_a_static_seed_is_the_seed_of_all_workers_and_environments(collect: Collect) -> None:
    collector = collect(ShowsSeed, sampler, **SMALL)
    first = next(collector)
    assert len(seeds_of(first).unique()) == len(first)
    assert collector.set_seed(7, static_seed=True) == 7
    batch = next(collector)
    assert (seeds_of(batch) == 7).all()
    of_worker = batch["action"].reshape(collect.workers, -1)
    if not collect.alone:  # workers that are threads share torch's generators
        assert (of_worker == of_worker[0]).all()
    assert collector.set_seed(2**40 + 3, static_seed=True) == 2**40 + 3
    assert (seeds_of(next(collector)) == 3).all()  # environments take seeds below 2**32
    collector.set_seed(7)
    assert len(seeds_of(next(collector)).unique()) == len(first)


def test_a_static_seed_is_the_seed_of_environments_in_processes(here: Collect) -> None:
    collector = here(ShowsSeed, sampler, vectorization="async", **SMALL)
    collector.set_seed(7, static_seed=True)
    assert (seeds_of(next(collector)) == 7).all()


def test_a_restored_run_keeps_a_static_seed(collect: Collect) -> None:
    first = collect(ShowsSeed, sampler, **SMALL)
    first.set_seed(7, static_seed=True)
    next(first)
    state = first.state_dict()
    again = collect(ShowsSeed, sampler, **SMALL)
    again.load_state_dict(state)
    assert (seeds_of(next(again)) == 7).all()
