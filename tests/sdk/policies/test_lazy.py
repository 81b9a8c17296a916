"""Lazy parameters are initialised before a policy acts, and before its weights are read."""

from typing import Any

import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

from rollfleet.errors import EnvironmentInvalid, PolicyInvalid
from rollfleet.policies.lazy import initialise, initialise_as_learner, is_lazy

SEEN, ACTED = Box(-1.0, 1.0, (3,)), Discrete(2)


class Lazy(nn.Module):
    def __init__(self, observation_space: Any = None, action_space: Any = None, *, unused: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(2))
        self.critic = nn.LazyLinear(1) if unused else None

    def forward(self, observation: Tensor) -> Tensor:
        action: Tensor = self.net(observation).argmax(-1)
        return action


def test_parameters_get_the_shapes_of_the_spaces_and_can_be_trained() -> None:
    policy = Lazy()
    assert is_lazy(policy)
    with torch.inference_mode():  # as a worker may be
        initialise(policy, SEEN, ACTED)
    assert not is_lazy(policy)
    assert [tuple(each.shape) for each in policy.parameters()] == [(8, 3), (8,), (8,), (8,), (2, 8), (2,)]
    policy.net(torch.zeros(4, 3)).sum().backward()
    assert policy.net[0].weight.grad is not None


def test_a_sequential_of_lazy_layers_is_initialised_too() -> None:
    policies = [nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(1)) for _ in range(2)]
    for policy in policies:
        initialise(policy, SEEN, Box(-1.0, 1.0, (1,)))
    weights = [policy.state_dict()["0.weight"] for policy in policies]
    assert not torch.equal(*weights)  # their random numbers are used once


def test_observations_of_the_call_are_in_their_space() -> None:
    space = Dict(count=Discrete(3, start=7), x=Box(0, 1, (2,)))
    seen: list[Any] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.LazyLinear(2)

        def forward(self, observation: Any) -> Tensor:
            seen.append(observation)
            action: Tensor = self.net(observation["x"]).argmax(-1)
            return action

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
