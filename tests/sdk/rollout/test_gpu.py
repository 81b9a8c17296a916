"""Devices on a machine with a GPU: the same numbers, on the requested devices. (Other machines test with `meta`.)"""

import sys
from itertools import islice
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rollfleet import Collector

GPU = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

SMALL: dict[str, Any] = {"num_envs": 4, "frames_per_batch": 160, "seed": 2}


class Leaning(nn.Module):
    """Pushes to the side that the pole leans to, or away from it; records its device and that of its observations."""

    def __init__(self) -> None:
        super().__init__()
        self.sign = nn.Parameter(torch.ones(()))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        there = torch.tensor([observation.device.type == GPU, self.sign.device.type == GPU])
        action = (self.sign * observation[:, 2] > 0).long()
        return {"action": action, "there": there.expand(len(observation), 2)}


class Falling(gymnasium.Env[Any, Any]):
    """Makes tensors on its device; episodes of 5 frames."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    device = torch.device("cpu")

    def to(self, device: torch.device) -> None:
        self.device = device

    def _seen(self, there: bool) -> Tensor:
        return torch.tensor([float(self.frame), float(there)], device=self.device)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.frame = 0
        return self._seen(False), {}

    def step(self, action: Any) -> Any:
        self.frame += 1
        there = isinstance(action, Tensor) and action.device.type == self.device.type == GPU
        ends = torch.tensor(self.frame == 5, device=self.device)
        return self._seen(there), torch.ones((), device=self.device), ends, torch.zeros_like(ends), {}


@pytest.fixture(autouse=True)
def _pickled_by_value() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a spawned worker cannot import a test


@pytest.mark.parametrize("place", [{}, {"workers": 2}], ids=["here", "processes"])
@pytest.mark.parametrize("sync", [{}, {"no_cuda_sync": True}], ids=["waits", "does not wait"])
def test_policy_and_batches_on_the_gpu_give_the_cpus_numbers(place: dict[str, Any], sync: dict[str, Any]) -> None:
    policy = Leaning()
    batches: dict[str, list[Any]] = {}
    for where, keywords in (("cpu", {}), (GPU, {"policy_device": GPU, "device": GPU} | sync)):
        policy.sign.data.fill_(1.0)
        with Collector("CartPole-v1", policy, **SMALL, **place, **keywords) as collector:
            batches[where] = []
            for batch in islice(collector, 4):
                torch.cuda.synchronize()
                batches[where].append(batch.clone())
                policy.sign.data.neg_()  # weights reach the copy on the GPU
    assert policy.sign.device.type == "cpu"
    for one, other in zip(batches["cpu"], batches[GPU], strict=True):
        assert {value.device.type for value in other.values(True, True)} == {GPU}
        assert other["there"].all()
        assert not one["there"].any()
        for key in ("observation", "action", ("next", "observation"), ("next", "done")):
            assert torch.equal(one[key], other[key].cpu()), key


@pytest.mark.parametrize("place", [{}, {"workers": 2}], ids=["here", "processes"])
def test_environments_are_on_the_gpu(place: dict[str, Any]) -> None:
    with Collector(Falling, env_device=GPU, **SMALL, **place) as collector:
        batch = next(collector)
    frame = batch["observation"][..., 0]
    assert torch.equal(frame, (torch.arange(frame.shape[1]) % 5).float().expand(frame.shape))
    assert torch.equal(batch["next", "observation"][..., 0], frame + 1)
    assert (batch["next", "observation"][..., 1] == 1).all()
    assert (batch["next", "reward"] == 1).all()
