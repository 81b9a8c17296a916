"""An environment whose infos say much."""

from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete
from tests.sdk.rollout.robot import ACTIONS, OBSERVATIONS, Robot

NARROW: Any = Discrete(3, start=1, dtype=np.int32)


class Chatty(Robot):
    """Says values of all kinds: some in each step, some now and then, one that changes its dtype."""

    observation_space = Dict({**OBSERVATIONS, "small": Discrete(60, dtype=np.int32)})
    action_space = Dict({**ACTIONS, "small": NARROW})
    render_mode = "rgb_array"

    def _seen(self) -> dict[str, Any]:
        return super()._seen() | {"small": self._left}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        return observation, {"start": self._left, "options": str(options or {})}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *outcome, _ = super().step(action)
        info: dict[str, Any] = {"left": self._left, "text": f"{self._left} left", "angle": self._angle.copy()}
        if self._left % 3 == 0:
            info["rare"] = {"deep": {"half": self._left / 2 if self._left % 2 else 1}, "flag": True, "nothing": None}
        return *outcome, info

    def render(self) -> Any:
        return np.full((2, 2, 3), self._left, np.uint8)

    def grow(self, by: int, *, times: int = 1) -> int:
        return self._left + by * times
