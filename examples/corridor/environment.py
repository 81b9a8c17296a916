"""An environment of your own: any `gymnasium.Env`. Replace this one."""

from typing import Any

import gymnasium
import numpy as np


class Corridor(gymnasium.Env[np.ndarray, np.int64]):
    """Walk to the right end of a corridor of 10 cells. Each step costs 0.1, and the end gives 1."""

    LENGTH = 10

    def __init__(self) -> None:
        """Declare the observation, the position in [0, 1], and its actions: 0 is left, 1 is right."""
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._cell = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode at the left end."""
        super().reset(seed=seed)
        self._cell = 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step; return observation, reward, terminated, truncated, and infos."""
        self._cell = max(0, self._cell + (1 if action == 1 else -1))
        arrived = self._cell == self.LENGTH
        return self._seen(), 1.0 if arrived else -0.1, arrived, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([self._cell / self.LENGTH], np.float32)


def make(**kwargs: Any) -> gymnasium.Env[np.ndarray, np.int64]:
    """Build one environment; `env.kwargs` of the job arrive here. Episodes are cut after 100 steps."""
    return gymnasium.wrappers.TimeLimit(Corridor(**kwargs), 100)
