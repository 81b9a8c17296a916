"""An environment that counts its steps, and policies that show what they learned."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from rollfleet import Collector

if TYPE_CHECKING:
    pass

OPTIONS: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 16}
VERSION = ("collector", "policy_version")
TRAJECTORY = ("collector", "traj_ids")


class Counting(gymnasium.Env[Any, Any]):
    """Observes how many steps it was taken, over all episodes; they have 5 frames. Raises at the step `breaks_at`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, breaks_at: int = 0) -> None:
        self._steps, self._breaks_at = 0, breaks_at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.array([self._steps], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self._breaks_at:
            raise ArithmeticError("the simulator broke")
        return np.array([self._steps], np.float32), 1.0, self._steps % 5 == 0, False, {}


def always_0(observation: Tensor) -> Tensor:
    return torch.zeros(len(observation), dtype=torch.int64)


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


def error_of(collector: Collector) -> str:
    """What its next call raises."""
    try:
        next(collector)
    except Exception as error:
        return str(error)
    return ""


class Learned(nn.Module):
    """Says its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        return {"action": always_0(observation), "says": self.weight.detach().expand(len(observation)).clone()}
