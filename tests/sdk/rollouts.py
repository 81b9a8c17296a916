"""Rollouts without a collector, and policies and environments for them."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from torch import Tensor

from rollfleet.data.batch import to_batch
from rollfleet.envs.factory import VectorEnv, make_env
from rollfleet.policies.actor_critic import ActorCritic
from rollfleet.policies.random_policy import RandomPolicy
from rollfleet.rollout.rollout import Rollout
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet_api.job import CollectSpec, EnvSpec
from rollfleet_api.placement import EnvironmentFailuresSpec


class Observing(gymnasium.Env[Any, Any]):
    """Episodes of `length` frames, 0: endless. A subclass says what it observes; each step gives reward 1."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)
    length = 0
    frame = 0

    def seen(self) -> Any:
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.frame = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.frame += 1
        return self.seen(), 1.0, self.frame == self.length, False, {}


class Sampling(Observing):
    """Observes random elements of one space, and refuses an action that is not in the other."""

    def __init__(self, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any], length: int = 0) -> None:
        self.observation_space, self.action_space, self.length = observations, actions, length

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        return super().step(action)


class Countdown(Observing):
    """Observes the episode's number (from 1), the frame in it, and `mark`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))

    def __init__(self, length: int = 5, mark: int = 0) -> None:
        self.length, self._mark, self._episode = length, mark, 0

    def seen(self) -> Any:
        self._episode += self.frame == 0
        return np.array([self._episode, self.frame, self._mark], np.float32)


def poles() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=35)


POLES: dict[str, Callable[[], VectorEnv]] = {
    "built": lambda: make_env(EnvSpec(id="CartPole-v1", num_envs=3, kwargs={"max_episode_steps": 35})),
    "same-step": lambda: SyncVectorEnv([poles] * 3, autoreset_mode=AutoresetMode.SAME_STEP),
    "next-step": lambda: SyncVectorEnv([poles] * 3, autoreset_mode=AutoresetMode.NEXT_STEP),
}
"""Vectors of three CartPoles, by how they reset; episodes of 35 frames at the most."""


def always_0(observation: Tensor) -> Tensor:
    return torch.zeros(len(observation), dtype=torch.int64)


def always_1(observation: Tensor) -> Tensor:
    return torch.ones(len(observation), dtype=torch.int64)


def towards_fall(observation: Tensor) -> Tensor:
    """Push CartPole to the side that its pole leans to: exact in any batch size, episodes of 25 to 60 frames."""
    return (observation[:, 2] > 0).long()


def mlp(spec: EnvSpec) -> ActorCritic:
    """Make the built-in policy for an environment, always with the same weights."""
    env = make_env(spec)
    torch.manual_seed(0)
    policy = ActorCritic(env.single_observation_space, env.single_action_space)
    env.close()
    return policy


def rollout_of(
    env: EnvSpec | VectorEnv,
    policy: Any = None,
    *,
    steps: int = 8,
    seed: int = 0,
    worker: int = 0,
    incarnation: int = 0,
    failures: EnvironmentFailuresSpec | None = None,
    **collect: Any,
) -> Rollout:
    """Make a rollout with these options of `CollectSpec`; None: a random policy."""
    env = make_env(env) if isinstance(env, EnvSpec) else env
    return Rollout(
        env,
        RandomPolicy(env.single_action_space) if policy is None else policy,
        steps=steps,
        seeds=Seeds.derive(seed, worker, incarnation, env.num_envs),
        trajectories=TrajectoryIds(worker, incarnation),
        collect=CollectSpec(frames_per_batch=1, **collect),
        failures=failures,
    )


def batches_of(rollout: Rollout, count: int) -> list[TensorDict]:
    """Return the next batches, of versions 0, 1, ..."""
    return [to_batch(rollout.collect(version=version)).clone() for version in range(count)]


def along_time(batches: list[TensorDict]) -> TensorDict:
    joined: TensorDict = torch.cat(batches, dim=1)
    return joined


def collected(rollout: Rollout, fragments: int) -> TensorDict:
    """Return the next fragments as one batch, and close the rollout."""
    batch = along_time(batches_of(rollout, fragments))
    rollout.close()
    return batch
