"""A policy that shows the weights it ran on, and a replay buffer that keeps each write apart."""

from typing import Any

import torch
from torch import Tensor, nn

from rollfleet import Collector

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


class Learned(nn.Module):
    """Puts its weight into the batch, as `shown`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        return {"action": always_0(observation), "shown": self.weight.detach().expand(len(observation)).clone()}


class Parts(list[Any]):
    """A replay buffer: a list's own `extend` would take a batch apart."""

    def extend(self, frames: Any) -> None:
        self.append(frames)
