"""An environment whose spaces are trees with leaves of every kind."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

OBSERVATIONS = Dict(
    {
        "image": Box(0, 255, (3, 2), np.uint8),
        "arm": Dict({"angle": Box(-9, 9, (2,), np.float64), "touch": MultiBinary(3)}),
        "pair": Tuple((Discrete(50, start=10), MultiDiscrete([100, 7]))),
    }
)
ACTIONS = Dict({"move": Box(-1, 1, (2,)), "keys": Tuple((Discrete(3, start=5), MultiBinary(2), MultiDiscrete([4, 2])))})


class Robot(gymnasium.Env[Any, Any]):
    """A random walk: an episode ends when it leaves the bounds, or after a random number of steps."""

    observation_space = OBSERVATIONS
    action_space = ACTIONS

    def __init__(self) -> None:
        self._angle, self._left = np.zeros(2), 0

    def _seen(self) -> dict[str, Any]:
        left, near = self._left, np.abs(self._angle) < 1
        return {
            "image": np.full((3, 2), abs(self._angle[0]) * 10, np.uint8),
            "arm": {"angle": self._angle.copy(), "touch": np.array([*near, left & 1], np.int8)},
            "pair": (np.int64(10 + left % 50), np.array([left, left % 7])),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._angle, self._left = self.np_random.normal(size=2), int(self.np_random.integers(3, 60))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        speed = 1.5 if action["keys"][0] > 5 else 0.5
        self._angle = self._angle + action["move"] * speed + self.np_random.normal(size=2) * 0.3
        self._left -= 1
        out_of_bounds = bool(np.abs(self._angle).max() > 3)
        return self._seen(), float(self._angle.sum()), out_of_bounds, self._left == 0, {}
