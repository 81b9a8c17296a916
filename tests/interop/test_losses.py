"""TorchRL's losses train on Rollfleet's batches without conversion."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl import data, modules, objectives
from torchrl.objectives.value import GAE

import rollfleet


class Target(gymnasium.Env[Any, Any]):
    """Rewards the action that the observation names: nearly solved after a few updates."""

    observation_space = Box(-1.0, 1.0, (2,))

    def __init__(self, actions: str) -> None:
        discrete = actions == "discrete"
        self.action_space: Any = Discrete(2) if discrete else Box(-1.0, 1.0, (1,))
        self._discrete, self._frames, self._wanted = discrete, 0, 0

    def _see(self) -> Any:
        self._wanted = int(self.np_random.integers(2))
        return np.array([self._wanted, 1 - self._wanted], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._frames = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._frames += 1
        aim = self._wanted if self._discrete else 2.0 * self._wanted - 1.0
        reward = -abs(float(np.asarray(action).reshape(-1)[0]) - aim)
        return self._see(), reward, self._frames == 7, self._frames == 13, {}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def mean_reward(batch: TensorDict) -> float:
    return float(batch["next", "reward"].mean())


def losses_of(terms: TensorDict) -> Tensor:
    total = sum(value for name, value in terms.items() if name.startswith("loss"))
    assert isinstance(total, Tensor)
    assert torch.isfinite(total)
    return total


def step(optimiser: torch.optim.Optimizer, loss: Tensor, parts: Iterable[nn.Module]) -> None:
    optimiser.zero_grad()
    loss.backward()
    for part in parts:
        gradients = [parameter.grad for parameter in part.parameters() if parameter.requires_grad]
        assert any(gradient is not None and bool(gradient.abs().sum() > 0) for gradient in gradients), part
    optimiser.step()


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs))


FORKS = {"workers": 2, "processes": rollfleet.Processes(start_method="fork")}


@pytest.mark.parametrize("place", [{}, FORKS], ids=["here", "processes"])
def test_clip_ppo_with_gae_learns_from_batches_of_a_torchrl_actor(place: dict[str, Any]) -> None:
    head = TensorDictModule(mlp(2, 2), in_keys=["observation"], out_keys=["logits"])
    actor = modules.ProbabilisticActor(
        head, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True, log_prob_key="action_log_prob"
    )
    critic = modules.ValueOperator(mlp(2, 1), in_keys=["observation"])
    advantage = GAE(gamma=0.9, lmbda=0.9, value_network=critic)
    loss = objectives.ClipPPOLoss(actor, critic)
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-2)
    rewards = []
    options: Any = {"num_envs": 4, "frames_per_batch": 128} | place
    with rollfleet.Collector(lambda: Target("discrete"), actor, **options) as collector:
        for batch in islice(collector, 40):
            rewards.append(mean_reward(batch))
            if rewards[-1] > -0.15:
                break
            for _ in range(4):
                with torch.no_grad():
                    advantage(batch)
                step(optimiser, losses_of(loss(batch.reshape(-1))), (actor, critic))
    assert rewards[0] < -0.3
    assert rewards[-1] > -0.15, rewards


def test_dqn_learns_from_batches_of_a_torchrl_actor_with_categorical_actions() -> None:
    policy = modules.QValueActor(mlp(2, 2), in_keys=["observation"], spec=data.Categorical(2))
    loss = objectives.DQNLoss(policy, action_space="categorical", delay_value=False)
    loss.make_value_estimator(gamma=0.5)
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-2)
    options: Any = {"num_envs": 4, "frames_per_batch": 128, "init_random_frames": 512}
    rewards = []
    with rollfleet.Collector(lambda: Target("discrete"), policy, **options) as collector:
        for batch in islice(collector, 40):
            rewards.append(mean_reward(batch))
            if rewards[-1] > -0.15:
                break
            for _ in range(8):
                step(optimiser, losses_of(loss(batch.reshape(-1))), (policy,))
    assert rewards[0] < -0.3
    assert rewards[-1] > -0.15, rewards


def test_sac_learns_from_batches_of_a_torchrl_actor_with_bounded_actions() -> None:
    spec = data.Bounded(-1.0, 1.0, (1,))
    head = TensorDictModule(
        nn.Sequential(mlp(2, 2), NormalParamExtractor()), in_keys=["observation"], out_keys=["loc", "scale"]
    )
    actor = modules.ProbabilisticActor(
        head, in_keys=["loc", "scale"], distribution_class=modules.TanhNormal, return_log_prob=False, spec=spec
    )
    network = modules.MLP(in_features=3, out_features=1, num_cells=[32], activation_class=nn.Tanh)
    value = modules.ValueOperator(network, in_keys=["observation", "action"])
    loss = objectives.SACLoss(actor, value, action_spec=spec, alpha_init=0.05, fixed_alpha=True)
    loss.make_value_estimator(gamma=0.5)
    update_targets = objectives.SoftUpdate(loss, tau=0.5)
    optimiser = torch.optim.Adam(loss.parameters(), lr=2e-2)
    options: Any = {"num_envs": 4, "frames_per_batch": 64, "init_random_frames": 128}
    rewards: list[float] = []
    with rollfleet.Collector(lambda: Target("continuous"), actor, **options) as collector:
        for batch in islice(collector, 60):
            rewards.append(mean_reward(batch))
            if rewards[-1] > -0.4:
                break
            for _ in range(6):
                step(optimiser, losses_of(loss(batch.reshape(-1))), (actor,))
                update_targets.step()
    assert rewards[0] < -0.7
    assert rewards[-1] > -0.4, rewards


def test_the_mlp_policy_provides_the_inputs_of_the_ppo_loss() -> None:
    """TorchRL computes the log-probabilities of `ActorCritic` from the same logits."""
    env = Target("discrete")
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
    head = TensorDictModule(policy.actor, in_keys=["observation"], out_keys=["logits"])
    actor = modules.ProbabilisticActor(head, in_keys=["logits"], distribution_class=Categorical)
    critic = modules.ValueOperator(policy.critic, in_keys=["observation"])
    loss = objectives.ClipPPOLoss(actor, critic)
    with rollfleet.Collector(lambda: Target("discrete"), policy, num_envs=2, frames_per_batch=64) as collector:
        batch = next(collector)
    # GAE needs more than `state_value` at the root, also for TorchRL's batches: shifted=True, or leave it out.
    with torch.no_grad():
        GAE(gamma=0.9, lmbda=0.9, value_network=critic, shifted=True)(batch.copy())
        batch = GAE(gamma=0.9, lmbda=0.9, value_network=critic)(batch.exclude("state_value"))
        terms = loss(batch.reshape(-1))
    assert abs(float(terms["kl_approx"])) < 1e-5
    assert float(terms["clip_fraction"]) == 0.0
