"""`rollfleet.evaluate`: whole episodes of a policy, without a collector."""

from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch
from tests.job_server import actor_critic
from torch import Tensor, nn

import rollfleet
from rollfleet.errors import JobInvalid


def test_it_has_the_returns_of_a_collectors_evaluation() -> None:
    policy = actor_critic()
    keywords: dict[str, Any] = {"num_envs": 4, "seed": 3}
    found = rollfleet.evaluate(policy, "CartPole-v1", 6, **keywords)
    evaluation = {"every": 1, "episodes": 6}
    with rollfleet.Collector("CartPole-v1", policy, frames_per_batch=8, evaluation=evaluation, **keywords) as collector:
        next(collector)
        assert replace(found, time_s=0, version=1) == replace(collector.evaluations[0], time_s=0)


class InTraining(nn.Module):
    """Pushes right in training mode and left in `eval()`, and counts its calls."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, observation: Tensor) -> Tensor:
        self.calls += 1
        return torch.full((len(observation),), 1.0 if self.training else -1.0)[:, None]


class Pushed(gymnasium.Env[Any, Any]):
    """One step, whose reward is its action."""

    observation_space = action_space = gymnasium.spaces.Box(-2, 2, (1,))

    def reset(self, **_: Any) -> Any:
        return [0.0], {}

    def step(self, action: Any) -> Any:
        return [0.0], float(action[0]), True, False, {}


def test_a_copy_of_the_module_acts_in_eval_mode() -> None:
    policy = InTraining()
    assert rollfleet.evaluate(policy, Pushed, 3).mean_return == -1
    assert policy.training
    assert policy.calls == 0


def test_any_policy_and_environment_of_a_collector_can_be_evaluated() -> None:
    envs = gymnasium.vector.SyncVectorEnv([Pushed] * 2)
    assert rollfleet.evaluate(lambda seen: torch.full((len(seen), 1), 0.5), envs, 5).mean_return == 0.5
    assert abs(rollfleet.evaluate(None, Pushed, 50, num_envs=5).mean_return) < 1


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"episodes": 0}, "episodes: must be at least 1"),
        ({"exploration": "often"}, "exploration"),
        ({"num_envs": 0}, "num_envs"),
        ({"num_envs": None}, "num_envs: expected a whole number, got None"),
    ],
)
def test_a_wrong_value_is_named(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(JobInvalid, match=message):
        rollfleet.evaluate(None, Pushed, **keywords)
