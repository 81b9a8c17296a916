"""Environments stepped one after the other: Gymnasium's `SyncVectorEnv` without the values that a rollout ignores."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from rollfleet.envs.space_tree import Array, SpaceTree

Step: TypeAlias = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class SerialVectorEnv(SyncVectorEnv):
    """A `SyncVectorEnv` that does not reset by itself.

    It drops the environments' infos, writes observations in place instead of stacking them, and a masked reset touches
    only the environments that it resets. It owns all arrays that it returns; the next call changes them.
    """

    def __init__(self, makers: Any) -> None:
        """Build the environments by calling each of `makers` once."""
        super().__init__(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)
        self._seen, self._acted = SpaceTree(self.single_observation_space), SpaceTree(self.single_action_space)
        self._rows: list[Any] = self._seen.split(self._observations)
        self._plain = self._seen.plain and self._acted.plain

    def write_into(
        self, observations: Sequence[Array], rewards: Array, terminations: Array, truncations: Array
    ) -> None:
        """Write results into this memory from now on: observations as leaves [envs, ...], the others [envs]."""
        self._rows, self._observations = list(observations), self._seen.join(observations)
        self._rewards, self._terminations, self._truncations = rewards, terminations, truncations

    def step(self, actions: Any) -> Step:
        """Step each environment. One whose episode has ended must have been reset before."""
        if not self._plain:
            return self._step_trees(actions)
        observations: Any = self._observations
        rewards, terminations, truncations = self._rewards, self._terminations, self._truncations
        for i, env in enumerate(self.envs):
            observations[i], rewards[i], terminations[i], truncations[i], _ = env.step(actions[i])
        return observations, rewards, terminations, truncations, {}

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments in `options["reset_mask"]` (bool [envs]), or all."""
        mask = (options or {}).get("reset_mask")
        chosen = range(self.num_envs) if mask is None else mask.nonzero()[0].tolist()
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        for i in chosen:
            observation, _ = self.envs[i].reset(seed=None if seeds is None else seeds[i])
            self._write(i, observation)
        return self._observations, {}

    def _step_trees(self, actions: Any) -> Step:
        leaves = self._acted.split(actions)
        rewards, terminations, truncations = self._rewards, self._terminations, self._truncations
        for i, env in enumerate(self.envs):
            action = self._acted.join([leaf[i] for leaf in leaves])
            observation, rewards[i], terminations[i], truncations[i], _ = env.step(action)
            self._write(i, observation)
        return self._observations, rewards, terminations, truncations, {}

    def _write(self, i: int, observation: Any) -> None:
        if self._plain:
            self._observations[i] = observation
            return
        for rows, leaf in zip(self._rows, self._seen.split(observation), strict=True):
            rows[i] = leaf
