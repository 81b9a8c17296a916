"""What users' code was given stays as it was: observations that a policy keeps, actions that an environment keeps."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from tests.sdk.batches import several
from tests.sdk.places import Collect
from tests.sdk.rollouts import Observing, collected, rollout_of
from torch import Tensor, nn

from rollfleet import ActorCritic

SMALL: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 32}


class Drifting(Observing):
    """Its observation is a random walk, always the same array; as a Dict if asked for."""

    action_space = Box(-1, 1, (2,), np.float64)
    length = 5

    def __init__(self, as_dict: bool = False) -> None:
        seen = Box(-np.inf, np.inf, (3,), np.float64)
        self._as_dict, self._at = as_dict, np.zeros(3)
        self.observation_space = Dict(at=seen, steps=Discrete(1000)) if as_dict else seen

    def seen(self) -> Any:
        self._at += self.np_random.normal(size=3)
        return {"at": self._at, "steps": self.frame} if self._as_dict else self._at


class Difference:
    """Acts with the difference of the last two observations; it keeps the last one as it was given."""

    def __init__(self) -> None:
        self._last: Tensor | None = None

    def __call__(self, observation: Any) -> Tensor:
        at: Tensor = observation["at"] if isinstance(observation, dict) else observation
        last, self._last = self._last, at
        return (at - (at if last is None else last))[:, :2]


@pytest.mark.parametrize("as_dict", [False, True], ids=["plain", "dict"])
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_policy_may_keep_its_observations(collect: Collect, vectorization: str, as_dict: bool) -> None:
    keywords = SMALL | {"frames_per_batch": 48, "vectorization": vectorization} | collect.alone
    rows = several(collect(lambda: Drifting(as_dict), Difference(), **keywords), 2)
    at = rows["at"] if as_dict else rows["observation"]
    assert torch.equal(rows["action"][:, 1:], (at[:, 1:] - at[:, :-1])[:, :, :2])


class Overwriting:
    """Acts with its observation and its state, and then writes zeros into both."""

    def initial_state(self, num_envs: int) -> Tensor:
        return torch.ones(num_envs, 2)

    def __call__(self, observation: Any, state: Tensor) -> tuple[Tensor, Tensor]:
        at: Tensor = observation["at"] if isinstance(observation, dict) else observation
        action, following = at[:, :2] * state, state + 1.0
        for given in (at, state):
            given.zero_()
        return action, following


def assert_recorded_before(rows: TensorDict, names: list[str]) -> None:
    """Check that observations and states are those that the policy acted on, also under `next`."""
    at, following = (rows.select(*names, ("recurrent", "state")), rows["next"])
    assert torch.equal(rows["action"], rows[names[0]][..., :2] * rows["recurrent", "state"])
    goes_on = ~rows["next", "done"][:, :-1, 0]
    for name in at.keys(True, True):
        assert torch.equal(following[name][:, :-1][goes_on], at[name][:, 1:][goes_on])
    assert not goes_on.all()


@pytest.mark.parametrize("as_dict", [False, True], ids=["plain", "dict"])
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_policy_may_overwrite_its_observations(collect: Collect, vectorization: str, as_dict: bool) -> None:
    keywords = SMALL | {"frames_per_batch": 48, "vectorization": vectorization} | collect.alone
    rows = several(collect(lambda: Drifting(as_dict), Overwriting(), **keywords), 2)
    assert_recorded_before(rows, ["at", "steps"] if as_dict else ["observation"])


@pytest.mark.parametrize("mode", AutoresetMode, ids=str)
def test_a_policy_may_overwrite_observations_in_each_autoreset_mode(mode: AutoresetMode) -> None:
    rollout = rollout_of(SyncVectorEnv([Drifting] * 2, autoreset_mode=mode), Overwriting())
    rollout.collect(version=0, random_actions=True)  # it is called once, for its outputs
    assert_recorded_before(collected(rollout, 4), ["observation"])


class Keeping(gymnasium.Env[Any, Any]):
    """Keeps all actions of an episode as they were given; the reward is their sum."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._actions: list[Any] = []
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._actions.append(action)
        return np.full(3, len(self._actions), np.float32), float(sum(map(np.sum, self._actions))), False, False, {}


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("plain", [False, True], ids=["actor and critic", "module"])
def test_an_environment_may_keep_its_actions(collect: Collect, vectorization: str, plain: bool) -> None:
    policy: nn.Module = ActorCritic(Keeping.observation_space, Keeping.action_space, hidden=(8,))
    if plain:
        policy = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    keywords = SMALL | {"frames_per_batch": 2 * 70 * collect.workers, "vectorization": vectorization}
    rows = several(collect(Keeping, policy, **keywords), 2)
    expected = rows["action"].sum(-1).double().cumsum(1)
    torch.testing.assert_close(rows["next", "reward"].squeeze(-1).double(), expected, atol=1e-4, rtol=1e-4)


class RunningMean(nn.Module):
    """Normalises by a running mean, in a buffer that it assigns, and a list of what it saw."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.seen: list[Tensor] = []

    def forward(self, observation: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * observation.mean(0)
        self.seen.append(observation)
        scores: Tensor = self.head(observation - self.mean)
        return scores.argmax(-1)


def test_the_learner_trains_on_what_its_own_policy_kept(here: Any) -> None:
    policy = RunningMean()
    collector = here("CartPole-v1", policy, **SMALL)
    next(collector)
    loss = policy.head(torch.stack(policy.seen) - policy.mean).square().mean()
    loss.backward()
    policy.mean += 1.0
    assert policy.head.weight.grad is not None
    next(collector)


def test_weights_reach_a_policy_that_has_replaced_its_buffers(apart: Collect) -> None:
    policy = RunningMean()
    collector = apart("CartPole-v1", policy, num_envs=2, frames_per_batch=64)
    next(collector)
    with torch.no_grad():
        policy.head.weight.zero_()
        policy.head.bias.copy_(torch.tensor([0.0, 1.0]))
    collector.update_policy_weights_()
    next(collector)
    batch = next(collector)
    assert (batch["action"] == 1).all()
