"""Policies that show the weights they ran on, and waits for conditions."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rollfleet import Collector

OPTIONS: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 16}
VERSION = ("collector", "policy_version")
TRAJECTORY = ("collector", "traj_ids")


def always_0(observation: Tensor) -> Tensor:
    return torch.zeros(len(observation), dtype=torch.int64)


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.005)


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
