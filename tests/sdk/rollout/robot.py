"""An environment whose spaces are trees with leaves of every kind."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from tensordict import TensorDict
from torch import Tensor

OBSERVATIONS = Dict(
    {
        "image": Box(0, 255, (3, 2), np.uint8),
        "arm": Dict({"angle": Box(-9, 9, (2,), np.float64), "touch": MultiBinary(3)}),
        "pair": Tuple((Discrete(50, start=10), MultiDiscrete([100, 7]))),
    }
)
ACTIONS = Dict({"move": Box(-1, 1, (2,)), "keys": Tuple((Discrete(3, start=5), MultiBinary(2), MultiDiscrete([4, 2])))})


class Robot(gymnasium.Env[Any, Any]):
    """Every leaf of its observation counts the frames of an episode of `length` frames."""

    observation_space = OBSERVATIONS
    action_space = ACTIONS

    def __init__(self, length: int = 4) -> None:
        self._length, self._frame = length, 0

    def _seen(self) -> dict[str, Any]:
        t = self._frame
        return {
            "image": np.full((3, 2), t, np.uint8),
            "arm": {"angle": np.full(2, t / 4), "touch": np.array([t & 1, t >> 1 & 1, t >> 2 & 1], np.int8)},
            "pair": (np.int64(10 + t), np.array([t, t % 7])),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._frame = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        self._frame += 1
        return self._seen(), float(action["keys"][0]), self._frame == self._length, False, {}


def counted(batch: TensorDict) -> dict[tuple[str, ...], Tensor]:
    bits = batch["arm", "touch"].long()
    return {
        ("image",): batch["image"][..., 0, 0].long(),
        ("arm", "angle"): (batch["arm", "angle"][..., 1] * 4).long(),
        ("arm", "touch"): bits[..., 0] + 2 * bits[..., 1] + 4 * bits[..., 2],
        ("pair", "0"): batch["pair", "0"] - 10,
        ("pair", "1"): batch["pair", "1"][..., 0],
    }
