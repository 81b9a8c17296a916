"""Environments and policies of a program that uses TorchRL's collectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv


def pendulum(seed: int | None = None) -> Any:
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(max_steps=7))
    if seed is not None:
        env.set_seed(seed)
    return env


def two_pendulums() -> Any:
    return SerialEnv(2, pendulum)


def linear() -> Any:
    torch.manual_seed(0)
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])


def constant(value: float) -> Any:
    """Return a policy whose one parameter is its action."""
    policy = linear()
    with torch.no_grad():
        policy.module.weight.zero_()
        policy.module.bias.fill_(value)
    return policy


def make_policy(*_: object) -> Any:
    return linear()


@contextmanager
def running(collector: Any) -> Iterator[Any]:
    try:
        yield collector
    finally:
        collector.shutdown()
