"""With a deterministic policy a rollout gives the numbers of a plain Gymnasium loop: each one, in every autoreset mode.

3,000 steps of each environment, a hundred episodes, bit for bit.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tests.sdk.rollouts import collected, rollout_of, towards_fall
from torch import Tensor

from rollfleet.envs.factory import VectorEnv
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.space_tree import SpaceTree
from rollfleet.envs.spaces import observation_keys
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.rollout.seeding import Seeds

FRAMES, LANES = 3_000, 2
Key = tuple[str, ...]
Maker = Callable[[], gymnasium.Env[Any, Any]]


class Wanderer(gymnasium.Env[Any, Any]):
    """A random walk: an episode ends when it leaves the bounds, or after a random number of steps."""

    observation_space = Dict(
        {
            "place": Dict({"x": Box(-9, 9, (2,), np.float64), "near": MultiBinary(2)}),
            "pair": Tuple((Discrete(6, start=2), Box(0, 255, (2, 2), np.uint8))),
        }
    )
    action_space = Dict({"turn": Discrete(2), "push": Box(-1, 1, (2,))})

    def __init__(self) -> None:
        self._x, self._left = np.zeros(2), 0

    def _seen(self) -> dict[str, Any]:
        near = (np.abs(self._x) < 1).astype(np.int8)
        image = np.full((2, 2), abs(self._x[0]) * 10, np.uint8)
        return {"place": {"x": self._x.copy(), "near": near}, "pair": (np.int64(2 + self._left % 6), image)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x, self._left = self.np_random.normal(size=2), int(self.np_random.integers(3, 60))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._x = self._x + action["push"] * (1.5 if action["turn"] else 0.5) + self.np_random.normal(size=2) * 0.3
        self._left -= 1
        return self._seen(), float(self._x.sum()), bool(np.abs(self._x).max() > 3), self._left == 0, {}


def wanderer_acts(observation: Any) -> dict[str, Any]:
    x = observation["place"]["x"]
    return {"action": {"turn": (x[:, 0] > 0).long(), "push": (x > 0).float() - observation["place"]["near"]}}


def pendulum_acts(observation: Tensor) -> Tensor:
    return torch.where(observation[:, 2:] > 0, 1.5, -0.5)  # exact in any batch size


ENVIRONMENTS: dict[str, tuple[Maker, Callable[[Any], Any], int]] = {
    "cartpole": (partial(gymnasium.make, "CartPole-v1", max_episode_steps=35), towards_fall, 90),
    "pendulum": (partial(gymnasium.make, "Pendulum-v1", max_episode_steps=47), pendulum_acts, 60),
    "dict": (Wanderer, wanderer_acts, 90),
}

MODES: dict[str, Callable[[list[Maker]], VectorEnv]] = {
    "ours": SerialVectorEnv,
    "processes": lambda makers: ProcessVectorEnv(makers, 2),
    "disabled": partial(SyncVectorEnv, autoreset_mode=AutoresetMode.DISABLED),
    "same-step": partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP),
    "next-step": partial(SyncVectorEnv, autoreset_mode=AutoresetMode.NEXT_STEP),
    "async-disabled": partial(AsyncVectorEnv, autoreset_mode=AutoresetMode.DISABLED),
    "async-same-step": partial(AsyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP),
    "async-next-step": partial(AsyncVectorEnv, autoreset_mode=AutoresetMode.NEXT_STEP),
}


def plain_loop(make: Maker, acts: Callable[[Any], Any], seed: int) -> Iterator[list[Any]]:
    """Return each step of one environment under the batch's keys: current and next values, reward, two flags."""
    env = make()
    seen, acted = SpaceTree(env.observation_space), SpaceTree(env.action_space)
    observation, _ = env.reset(seed=seed)
    for _ in range(FRAMES):
        now = [np.array(leaf) for leaf in seen.split(observation)]
        output = acts(seen.join([torch.from_numpy(leaf[None]) for leaf in now]))
        leaves = acted.split(output["action"] if isinstance(output, dict) else output)
        observation, reward, terminated, truncated, _ = env.step(acted.join([leaf[0].numpy() for leaf in leaves]))
        after = [np.array(leaf) for leaf in seen.split(observation)]
        yield [*now, *after, np.float32(reward), terminated, truncated]
        if terminated or truncated:
            observation, _ = env.reset()


LOOPS: dict[tuple[str, int], list[Tensor]] = {}


def columns(environment: str, seed: int) -> list[Tensor]:
    """Return the loop of one environment, cached for all modes."""
    if (environment, seed) not in LOOPS:
        make, acts, _ = ENVIRONMENTS[environment]
        rows = plain_loop(make, acts, seed)
        LOOPS[environment, seed] = [torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True)]
    return LOOPS[environment, seed]


IN_PROCESSES = ("processes", "async")


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.slow] if mode.startswith(IN_PROCESSES) else []) for mode in MODES]
)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_rollout_records_the_numbers_of_a_plain_loop(environment: str, mode: str) -> None:
    make, acts, episodes = ENVIRONMENTS[environment]
    seeds, steps = Seeds.derive(3, 1, 0, LANES), 500
    env = MODES[mode]([make] * LANES)
    observed = observation_keys(SpaceTree(env.single_observation_space))
    keys: list[Key] = [*observed, *(("next", *key) for key in observed)]
    keys += [("next", "reward"), ("next", "terminated"), ("next", "truncated")]
    got = collected(rollout_of(env, acts, steps=steps, seed=3, worker=1), FRAMES // steps)
    ended = 0
    for env_index, seed in enumerate(seeds.envs):
        for key, expected in zip(keys, columns(environment, seed), strict=True):
            value = got[key][env_index]
            assert value.dtype == expected.dtype, key
            assert torch.equal(value.reshape(expected.shape), expected), key
        ended += int((columns(environment, seed)[-1] | columns(environment, seed)[-2]).sum())
    assert ended > episodes
