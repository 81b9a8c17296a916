"""Policies with lazy parameters, on each transport."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.job_server import Server
from tests.sdk.places import Collect
from torch import Tensor, nn

from rollfleet import Collector
from rollfleet.errors import WeightMismatch

SMALL: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 32}


class Lazy(nn.Module):
    """Its parameters have no shape before the first call."""

    def __init__(self, *_: object) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        logits = self.net(observation)
        return {"action": logits.argmax(-1), "logits": logits}


def train(policy: Lazy) -> None:
    policy.net(torch.ones(3, 4)).sum().backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad)


@pytest.mark.parametrize("device", ["the learner's", "another"])
def test_lazy_parameters_are_initialised_in_the_learner_and_its_workers(collect: Collect, device: str) -> None:
    torch.manual_seed(0)  # two large steps from some weights make numbers whose rounding differs
    policy = Lazy()
    keywords: dict[str, Any] = {} if device == "the learner's" else {"policy_device": "cpu:0"}
    collector = collect("CartPole-v1", policy, weights_interval=0, **SMALL, **keywords)
    next(collector)
    for _ in range(2):
        train(policy)
        collector.update_policy_weights_()
        batch = next(collector)
        with torch.no_grad():
            torch.testing.assert_close(batch["logits"], policy.net(batch["observation"]))


def test_a_lazy_policy_from_a_factory_is_initialised(collect: Collect) -> None:
    collector = collect("CartPole-v1", policy_factory=Lazy, **SMALL)
    next(collector)
    with pytest.raises(WeightMismatch, match=r"net\.0\.weight: this parameter is lazy"):
        collector.update_policy_weights_(Lazy())
    policy = Lazy()
    policy(torch.zeros(2, 4))
    collector.update_policy_weights_(policy)
    batch = next(collector)
    with torch.no_grad():
        torch.testing.assert_close(batch["logits"], policy.net(batch["observation"]))


def test_a_lazy_policy_of_a_job_is_initialised_in_the_learner_and_its_workers(
    server: Server, connect: Callable[..., Collector]
) -> None:
    spec = {"env": {"id": "CartPole-v1", "numEnvs": 2}, "collect": {"framesPerBatch": 32}}
    job = server.provision(policy={"entrypoint": f"{__name__}:Lazy"}, **spec)
    server.start_worker(job, 0)
    policy = Lazy()
    with connect(policy) as collector:
        batch = next(collector)
    with torch.no_grad():
        torch.testing.assert_close(batch["logits"], policy.net(batch["observation"]))
