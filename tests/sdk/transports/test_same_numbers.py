"""Batches have the numbers of a plain Gymnasium loop, and the same on every transport."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from tests.sdk.places import Collect
from torch import Tensor

from rollfleet import ActorCritic, Collector
from rollfleet.rollout.seeding import Seeds

SEED, FRAMES = 11, 10_000


def leaning(observation: Tensor) -> Tensor:
    """Pushes to the side that the pole leans to: episodes of some 40 frames."""
    return (observation[:, 2] > 0).long()


@cache
def plain_loop(env_id: str, seed: int, policy: Callable[[Tensor], Tensor]) -> dict[Any, Any]:
    """Collect with a plain Gymnasium loop, without Rollfleet."""
    seen: dict[Any, list[Any]] = {
        "observation": [],
        "action": [],
        ("next", "observation"): [],
        ("next", "reward"): [],
        ("next", "terminated"): [],
        ("next", "truncated"): [],
    }
    env = gymnasium.make(env_id)
    observation, _ = env.reset(seed=seed)
    for _ in range(FRAMES):
        action = policy(torch.from_numpy(observation)[None])[0].numpy()
        following, reward, terminated, truncated, _ = env.step(action)
        for values, value in zip(
            seen.values(), (observation, action, following, reward, terminated, truncated), strict=True
        ):
            values.append(np.array(value))
        observation = env.reset()[0] if terminated or truncated else following
    env.close()
    return {key: np.stack(values) for key, values in seen.items()}


ENVS: dict[str, Any] = {
    "an id": "CartPole-v1",
    **{
        mode.name: partial(SyncVectorEnv, [partial(gymnasium.make, "CartPole-v1")] * 2, autoreset_mode=mode)
        for mode in AutoresetMode
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("env", ENVS)
def test_observations_rewards_and_flags_are_those_of_a_plain_loop(collect: Collect, env: str) -> None:
    per_batch = 500
    collector = collect(
        ENVS[env],
        leaning,
        num_envs=2,
        seed=SEED,
        frames_per_batch=per_batch * 2 * collect.workers,
        total_frames=FRAMES * 2 * collect.workers,
    )
    whole: Any = torch.cat(list(collector), dim=1)
    assert whole.batch_size == (2 * collect.workers, FRAMES)
    for row, found in enumerate(whole):
        expected = plain_loop("CartPole-v1", Seeds.derive(SEED, row // 2, 0, 2).envs[row % 2], leaning)
        ends = expected["next", "terminated"] | expected["next", "truncated"]
        assert ends.sum() > 150
        for key, values in expected.items():
            array = found[key].squeeze(-1) if key[0] == "next" and key[1] != "observation" else found[key]
            np.testing.assert_array_equal(array.numpy(), values.astype(array.numpy().dtype), err_msg=str(key))
        np.testing.assert_array_equal(found["next", "done"].squeeze(-1).numpy(), ends)
        lengths = np.diff(np.flatnonzero(ends), prepend=-1)
        ids = found["collector", "traj_ids"].numpy()
        assert len(np.unique(ids)) == len(lengths) + (not ends[-1])


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
        assert set(one.keys(True, True)) == set(other.keys(True, True))
        for key, value in one.items(True, True):
            assert torch.equal(value, other[key]), key


def test_two_runs_of_several_workers_are_the_same_in_every_place(apart: Collect, processes: Collect) -> None:
    """The policy draws no random numbers: the workers over NATS are threads here, and share torch's generators."""
    keywords: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 160, "total_frames": 800, "seed": SEED}
    runs: Any = [torch.cat(list(make("CartPole-v1", leaning, **keywords)), dim=1) for make in (apart, processes)]
    assert set(runs[0].keys(True, True)) == set(runs[1].keys(True, True))
    for key, value in runs[0].items(True, True):
        assert torch.equal(value, runs[1][key]), key
