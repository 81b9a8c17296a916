"""An environment that can be held, a policy that shows its weights, and a replay buffer that keeps each write apart."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rollfleet import Collector
from rollfleet.testing import CountingEnv

OPTIONS: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 16}
VERSION = ("collector", "policy_version")
TRAJECTORY = ("collector", "traj_ids")


def always_0(observation: Tensor) -> Tensor:
    return torch.zeros(len(observation), dtype=torch.int64)


def error_of(collector: Collector) -> str:
    """Return the message of the error that the next call raises; empty: it raises none."""
    try:
        next(collector)
    except Exception as error:
        return str(error)
    return ""


class WaitsForFile(CountingEnv):
    """The step that has this number waits until a file exists."""

    def __init__(self, step: int = 0, file: Path | None = None) -> None:
        super().__init__()
        self._step, self._file = step, file

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        while self.steps + 1 == self._step and self._file is not None and not self._file.exists():
            time.sleep(0.01)
        return super().step(action)


class Learned(nn.Module):
    """Puts its weight into the batch, as `shown`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        return {"action": always_0(observation), "shown": self.weight.detach().expand(len(observation)).clone()}


def showing(weight: float) -> Learned:
    policy = Learned()
    nn.init.constant_(policy.weight, weight)
    return policy


class Parts(list[Any]):
    """A replay buffer: a list's own `extend` would take a batch apart."""

    def extend(self, frames: Any) -> None:
        self.append(frames)

    @property
    def frames(self) -> int:
        return sum(map(len, self))
