"""With a deterministic policy a rollout gives the numbers of a plain Gymnasium loop: each one, in every autoreset mode.

1,000 steps of each environment, dozens of episodes, bit for bit.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from tests.sdk.plain_loops import Columns, Maker, assert_same_frames, plain_loop, vector_loop
from tests.sdk.rollout.robot import Robot
from tests.sdk.rollouts import along_time, rollout_of, towards_fall
from torch import Tensor

from rollfleet.data.batch import to_batch
from rollfleet.envs.factory import VectorEnv
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.space_tree import SpaceTree
from rollfleet.envs.spaces import observation_keys
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.rollout.rollout import Rollout
from rollfleet.rollout.seeding import Seeds
from rollfleet_api.job import EnvSpec, Vectorization

FRAMES, LANES, STEPS = 1_000, 2, 50


def robot_acts(observation: Any) -> dict[str, Any]:
    (angle, touch), (_, second) = observation["arm"].values(), observation["pair"]
    keys = (5 + (angle[:, 0] > 0).long(), touch[:, :2], second % torch.tensor([4, 2]))
    return {"action": {"move": (angle > 0).float() - touch[:, :2], "keys": keys}}


def pendulum_acts(observation: Tensor) -> Tensor:
    return torch.where(observation[:, 2:] > 0, 1.5, -0.5)  # exact in any batch size


ENVIRONMENTS: dict[str, tuple[Maker, Callable[[Any], Any], int]] = {
    "cartpole": (partial(gymnasium.make, "CartPole-v1", max_episode_steps=35), towards_fall, 50),
    "pendulum": (partial(gymnasium.make, "Pendulum-v1", max_episode_steps=47), pendulum_acts, 40),
    "robot": (Robot, robot_acts, 40),
}

MODES: dict[str, Callable[[list[Maker]], VectorEnv]] = {
    "ours": SerialVectorEnv,
    "processes": lambda makers: ProcessVectorEnv(makers, 2),
    "disabled": partial(SyncVectorEnv, autoreset_mode=AutoresetMode.DISABLED),
    "same-step": partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP),
    "next-step": partial(SyncVectorEnv, autoreset_mode=AutoresetMode.NEXT_STEP),
    "shared-memory-same-step": partial(SyncVectorEnv, copy=False, autoreset_mode=AutoresetMode.SAME_STEP),
    "shared-memory-next-step": partial(SyncVectorEnv, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP),
    "async-disabled": partial(AsyncVectorEnv, autoreset_mode=AutoresetMode.DISABLED),
    "async-same-step": partial(AsyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP),
    "async-next-step": partial(AsyncVectorEnv, autoreset_mode=AutoresetMode.NEXT_STEP),
}


SEEDS = Seeds.derive(3, 1, 0, LANES)


@cache
def columns(environment: str, seed: int) -> Columns:
    make, acts, _ = ENVIRONMENTS[environment]
    return plain_loop(make, acts, seed, FRAMES)


def played(rollout: Rollout) -> tuple[TensorDict, list[float], list[int]]:
    """Return all frames, and the returns and lengths of episodes; check their memory."""
    batches, returns, lengths = [], [], []
    for version in range(FRAMES // STEPS):
        fragment = rollout.collect(version=version)
        assert all(value.is_contiguous() for value in fragment.steps.values())
        batches.append(to_batch(fragment).clone())
        assert fragment.episodes["returns"].dtype == torch.float64
        returns += fragment.episodes["returns"].tolist()
        lengths += fragment.episodes["lengths"].tolist()
    rollout.close()
    batch = along_time(batches)
    assert not (batch["done"] | batch["terminated"] | batch["truncated"]).any()
    return batch, returns, lengths


def episodes_of(columns: list[Tensor]) -> list[tuple[float, int]]:
    """Return return and length of each episode that has ended."""
    *_, rewards, terminated, truncated = columns
    ends = [0, *(1 + (terminated | truncated).nonzero().flatten()).tolist()]
    return [(float(rewards[start:end].double().sum()), end - start) for start, end in pairwise(ends)]


IN_PROCESSES = ("processes", "async")


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.slow] if mode.startswith(IN_PROCESSES) else []) for mode in MODES]
)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_rollout_records_the_numbers_of_a_plain_loop(environment: str, mode: str) -> None:
    make, acts, episodes = ENVIRONMENTS[environment]
    env = MODES[mode]([make] * LANES)
    observed = observation_keys(SpaceTree(env.single_observation_space))
    batch, returns, lengths = played(rollout_of(env, acts, steps=STEPS, seed=3, worker=1))
    loops = [columns(environment, seed) for seed in SEEDS.envs]
    assert_same_frames(batch, loops, observed)
    ended = sorted(episode for loop in loops for episode in episodes_of(loop))
    assert len(ended) > episodes
    if "next-step" in mode:  # there, faster environments have ended episodes of the next fragment
        assert not Counter(length for _, length in ended) - Counter(lengths)
    else:
        assert sorted(lengths) == sorted(length for _, length in ended)
        torch.testing.assert_close(sorted(returns), [value for value, _ in ended], rtol=1e-6, atol=0)


def test_max_frames_per_traj_truncates_like_gymnasiums_time_limit() -> None:
    env = EnvSpec(id="CartPole-v1", num_envs=LANES)
    batch, _, _ = played(rollout_of(env, towards_fall, steps=STEPS, seed=3, worker=1, max_frames_per_traj=35))
    assert_same_frames(batch, [columns("cartpole", seed) for seed in SEEDS.envs])
    assert batch["next", "truncated"].any()
    assert batch["next", "terminated"].any()


def test_gymnasiums_native_vector_environment_equals_its_plain_loop() -> None:
    spec = EnvSpec(
        id="CartPole-v1", num_envs=LANES, kwargs={"max_episode_steps": 35}, vectorization=Vectorization.NATIVE
    )
    batch, _, _ = played(rollout_of(spec, towards_fall, steps=STEPS, seed=3, worker=1))
    env = gymnasium.make_vec("CartPole-v1", LANES, "vector_entry_point", max_episode_steps=35)
    first, _ = env.reset(seed=SEEDS.envs[0])  # its environments share a generator
    assert_same_frames(batch, vector_loop(env, first, lambda seen: (seen[:, 2] > 0).astype(np.int64), FRAMES))
    assert batch["next", "done"].sum() > 50
