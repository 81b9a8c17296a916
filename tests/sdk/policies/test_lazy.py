"""Lazy parameters are initialised before a policy acts, and before its weights are read."""

from typing import Any

import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from tests.sdk.places import Collect
from torch import Tensor, nn

from rollfleet.errors import EnvironmentInvalid, PolicyInvalid, WeightMismatch
from rollfleet.policies.lazy import initialise, initialise_as_learner, is_lazy

SEEN, ACTED = Box(-1.0, 1.0, (3,)), Discrete(2)
SMALL: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 32}


class Lazy(nn.Module):
    def __init__(self, *_: object, unused: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2))
        self.critic = nn.LazyLinear(1) if unused else None

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        logits = self.net(observation)
        return {"action": logits.argmax(-1), "logits": logits}


def test_parameters_get_the_shapes_of_the_spaces_and_can_be_trained() -> None:
    policy = Lazy()
    assert is_lazy(policy)
    with torch.inference_mode():  # as a worker may be
        initialise(policy, SEEN, ACTED)
    assert not is_lazy(policy)
    assert [tuple(each.shape) for each in policy.parameters()] == [(8, 3), (8,), (2, 8), (2,)]
    policy.net(torch.zeros(4, 3)).sum().backward()
    assert policy.net[0].weight.grad is not None


def test_a_sequential_of_lazy_layers_is_initialised_too() -> None:
    policies = [nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(1)) for _ in range(2)]
    for policy in policies:
        initialise(policy, SEEN, Box(-1.0, 1.0, (1,)))
        assert not is_lazy(policy)
    weights = [policy.state_dict()["0.weight"] for policy in policies]
    assert not torch.equal(*weights)  # their random numbers are used once


def test_observations_of_the_call_are_in_their_space() -> None:
    space = Dict(count=Discrete(3, start=7), x=Box(0, 1, (2,)))
    seen: list[Any] = []

    class Watching(Lazy):
        def forward(self, observation: Any) -> dict[str, Tensor]:
            seen.append(observation)
            return super().forward(observation["x"])

    initialise(Watching(), space, ACTED)
    assert all(seen[0]["count"] >= 7)


def test_other_policies_are_not_called() -> None:
    def fails(*_: object) -> Tensor:
        raise AssertionError

    policy = nn.Linear(3, 2)
    policy.forward = fails  # type: ignore[method-assign, assignment]
    for each in (policy, fails):
        initialise(each, SEEN, ACTED)
        initialise_as_learner(each, fails)  # type: ignore[arg-type]


def test_a_parameter_that_a_call_does_not_reach_is_named() -> None:
    with pytest.raises(PolicyInvalid, match=r"critic\.weight of the policy is lazy, and a call of the policy does not"):
        initialise(Lazy(unused=True), SEEN, ACTED)


def test_a_learner_without_the_environment_is_shown_what_to_do() -> None:
    def missing() -> Any:
        raise EnvironmentInvalid("no module named 'robot'")

    with pytest.raises(PolicyInvalid, match=r"no environment here .*'robot'.*; call the policy once before"):
        initialise_as_learner(Lazy(), missing)


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
