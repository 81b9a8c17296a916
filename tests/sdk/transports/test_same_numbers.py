"""Batches have the numbers of a plain Gymnasium loop, and the same on every transport."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from tests.sdk.batches import assert_same
from tests.sdk.places import Collect
from tests.sdk.plain_loops import Columns, assert_same_frames, plain_loop
from tests.sdk.rollouts import towards_fall

from rollfleet import ActorCritic, Collector
from rollfleet.rollout.seeding import Seeds

SEED, FRAMES = 11, 10_000


ENVS: dict[str, Any] = {
    "an id": "CartPole-v1",
    **{
        mode.name: partial(SyncVectorEnv, [partial(gymnasium.make, "CartPole-v1")] * 2, autoreset_mode=mode)
        for mode in AutoresetMode
    },
}


@cache
def loop_of(seed: int) -> Columns:
    return plain_loop(partial(gymnasium.make, "CartPole-v1"), towards_fall, seed, FRAMES)


@pytest.mark.slow
@pytest.mark.parametrize("env", ENVS)
def test_observations_rewards_and_flags_are_those_of_a_plain_loop(collect: Collect, env: str) -> None:
    frames = 2 * collect.workers
    keywords = {"num_envs": 2, "seed": SEED, "frames_per_batch": 500 * frames, "total_frames": FRAMES * frames}
    whole: Any = torch.cat(list(collect(ENVS[env], towards_fall, **keywords)), dim=1)
    assert whole.batch_size == (2 * collect.workers, FRAMES)
    seeds = [seed for worker in range(collect.workers) for seed in Seeds.derive(SEED, worker, 0, 2).envs]
    assert_same_frames(whole, [loop_of(seed) for seed in seeds])
    assert (whole["next", "done"].sum(1) > 150).all()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_one_seed_gives_the_same_batches_bit_for_bit_in_every_place(collect: Collect, env_id: str) -> None:
    """A policy that samples, after some random frames; its weights change at each batch."""

    def run(make: Callable[..., Collector], **place: Any) -> list[TensorDict]:
        torch.manual_seed(0)
        env = gymnasium.make(env_id)
        policy = ActorCritic(env.observation_space, env.action_space)
        batches = []
        keywords: dict[str, Any] = {"num_envs": 3, "frames_per_batch": 96, "init_random_frames": 96, "seed": SEED}
        for batch in make(env_id, policy, total_frames=96 * 5, **keywords, **place):
            batches.append(batch)
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.mul_(1.1)
        return batches

    expected = run(Collector)
    place = {} if collect.workers == 1 else {"workers": 1}
    found = run(collect, **place)
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other)


def test_two_runs_of_several_workers_are_the_same_in_every_place(apart: Collect, processes: Collect) -> None:
    """The policy draws no random numbers: the workers over NATS are threads here, and share torch's generators."""
    keywords: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 160, "total_frames": 800, "seed": SEED}
    runs: Any = [torch.cat(list(make("CartPole-v1", towards_fall, **keywords)), dim=1) for make in (apart, processes)]
    assert_same(*runs)
