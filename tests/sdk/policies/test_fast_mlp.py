"""The fast form of a small policy acts as the plain policy; if it could not, the plain policy acts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from tests.sdk.rollouts import rollout_of
from torch import nn

from rollfleet.envs.factory import make_env
from rollfleet.exploration import Exploration, exploring
from rollfleet.policies.actor_critic import ActorCritic
from rollfleet.policies.fast_mlp import BLOCK, FastMlp, fast
from rollfleet_api.job import EnvSpec

ENVS = 5
SEEN = Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = {
    "discrete": Discrete(4),
    "from one on": Discrete(3, start=1),
    "bounded": Box(np.array([-1.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64),
    "unbounded": Box(-np.inf, np.inf, (2,), np.float32),
    "in a matrix": Box(-1.0, 1.0, (2, 2), np.float32),
}
Space = gymnasium.Space[Any]


def pair(action_space: Space, *, seen: Space = SEEN, activation: Any = "Tanh", envs: int = ENVS) -> tuple[Any, FastMlp]:
    policy = ActorCritic(seen, action_space, hidden=(16, 8), activation=activation)
    (*_, head), (*_, value) = policy.actor, policy.critic
    assert isinstance(head, nn.Linear)
    assert isinstance(value, nn.Linear)
    with torch.no_grad():
        head.weight.mul_(100.0)  # with its gain of 0.01 all actions would be alike
        value.bias.fill_(3.0)
        if isinstance(action_space, Box):
            policy.log_std.fill_(1.0)  # wide: many samples are near the bounds
    quick = fast(policy, (seen, action_space), envs)
    assert quick is not None
    return policy, quick


def observations(*lead: int) -> Any:
    return np.random.default_rng(0).standard_normal((*lead, 3), dtype=np.float32)


@pytest.mark.parametrize("activation", ["Tanh", "Relu"])
@pytest.mark.parametrize("actions", ACTIONS)
def test_the_most_likely_actions_and_their_outputs_equal_the_plain_policys(actions: str, activation: str) -> None:
    policy, quick = pair(ACTIONS[actions], activation=activation)
    steps = BLOCK + 3
    seen = observations(steps, ENVS)
    with exploring(Exploration.MODE), torch.inference_mode():
        assert quick.begin()
        chosen = np.stack([quick.act(each).copy() for each in seen])
        plain = [policy(torch.from_numpy(each)) for each in seen]
    log_prob, value = quick.rest()
    assert chosen.dtype == ACTIONS[actions].dtype
    for name, fast_ones in {"action": chosen, "action_log_prob": log_prob, "state_value": value}.items():
        expected = torch.stack([each[name] for each in plain])
        torch.testing.assert_close(torch.from_numpy(fast_ones), expected, rtol=1e-4, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("actions", ACTIONS)
def test_log_probabilities_of_samples_equal_the_plain_policys(actions: str) -> None:
    policy, quick = pair(ACTIONS[actions])
    seen = observations(BLOCK + 3, ENVS)
    assert quick.begin()
    chosen = np.stack([quick.act(each).copy() for each in seen])
    log_prob, _ = quick.rest()
    with torch.no_grad():
        expected, _, _ = policy.evaluate(torch.from_numpy(seen), torch.from_numpy(chosen))
    torch.testing.assert_close(torch.from_numpy(log_prob), expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("actions", ["discrete", "bounded", "unbounded"])
def test_samples_have_the_plain_policys_distribution(actions: str) -> None:
    envs, steps = 500, 40
    torch.manual_seed(1)  # the weights, too: quantiles of a distribution with two peaks differ more
    policy, quick = pair(ACTIONS[actions], envs=envs)
    seen = np.tile(observations(1), (envs, 1))
    assert quick.begin()
    own = np.concatenate([quick.act(seen).copy() for _ in range(steps)])
    with torch.inference_mode():
        plain = np.concatenate([policy(torch.from_numpy(seen))["action"].numpy() for _ in range(steps)])
    if actions == "discrete":
        frequencies = [np.bincount(each, minlength=4) / len(each) for each in (own, plain)]
        np.testing.assert_allclose(frequencies[0], frequencies[1], atol=0.02)  # four deviations
    else:
        points = np.linspace(0.02, 0.98, 25)
        spread = np.ptp(plain, axis=0)
        differ = np.abs(np.quantile(own, points, axis=0) - np.quantile(plain, points, axis=0))
        assert (differ < 0.03 * spread).all()


def test_new_weights_apply_from_the_next_fragment_on() -> None:
    policy, quick = pair(Discrete(4))
    seen = observations(ENVS)

    def value() -> float:
        assert quick.begin()
        quick.act(seen)
        return float(quick.rest()[1].mean())

    with exploring(Exploration.MODE):
        for weights in (1.0, 2.0):
            with torch.no_grad():
                policy.critic[-1].weight.zero_()
                policy.critic[-1].bias.fill_(weights)
                policy.actor[-1].weight.zero_()
                policy.actor[-1].bias.data = torch.eye(4)[int(weights)]
            assert value() == weights
            assert quick.begin()
            assert quick.act(seen).tolist() == [int(weights)] * ENVS


class Special(ActorCritic):
    """A user's subclass."""


def test_policies_with_unknown_parts_have_no_fast_form() -> None:
    assert fast(lambda seen: seen, (SEEN, Discrete(2)), ENVS) is None
    assert fast(Special(SEEN, Discrete(2)), (SEEN, Discrete(2)), ENVS) is None
    assert fast(ActorCritic(Discrete(3), Discrete(2)), (Discrete(3), Discrete(2)), ENVS) is None


CHANGES: dict[str, Callable[[ActorCritic], object]] = {
    "a hook": lambda policy: policy.critic[0].register_forward_hook(lambda *_: None),
    "a forward of its own": lambda policy: setattr(policy, "forward", lambda observation: {}),
    "double precision": lambda policy: policy.double(),
    "dropout": lambda policy: policy.actor.insert(1, nn.Dropout()),
    "a layer without bias": lambda policy: policy.actor.__setitem__(0, nn.Linear(3, 16, bias=False)),
    "a bounded output": lambda policy: policy.actor.append(nn.Tanh()),
    "a normalised critic": lambda policy: policy.critic.insert(1, nn.BatchNorm1d(16)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_policy_that_becomes_unusual_is_called_directly(change: str) -> None:
    policy, quick = pair(Discrete(4))
    assert quick.begin()
    CHANGES[change](policy)
    assert not quick.begin()


@contextmanager
def hook_on_all_modules() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("around", [hook_on_all_modules, lambda: torch.autocast("cpu")])
def test_a_torch_wide_mode_makes_the_policy_be_called(around: Any) -> None:
    _, quick = pair(Discrete(4))
    with around():
        assert not quick.begin()
    assert quick.begin()


def test_large_products_are_left_to_torch() -> None:
    _, quick = pair(Discrete(4), envs=5000)
    assert not quick.begin()


@pytest.mark.parametrize("backend", ["Gymnasium", "EnvPool"])
def test_a_batch_has_the_policys_outputs(backend: str) -> None:
    if backend == "EnvPool":
        pytest.importorskip("envpool")
    env = make_env(EnvSpec.model_validate({"id": "CartPole-v1", "numEnvs": 4, "backend": backend}))
    policy, _ = pair(Discrete(2), seen=env.single_observation_space)
    rollout = rollout_of(env, policy, steps=BLOCK + 9)
    for version in range(3):
        steps = rollout.collect(version=version).steps
        with torch.no_grad():
            log_prob, _, value = policy.evaluate(steps["observation",], steps["action",])
        torch.testing.assert_close(steps["action_log_prob",], log_prob, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(steps["state_value",], value, rtol=1e-4, atol=1e-5)
    rollout.close()


def test_padding_stays_zero() -> None:
    env = make_env(EnvSpec(id="CartPole-v1", num_envs=4))
    policy, _ = pair(Discrete(2), seen=env.single_observation_space)
    rollout = rollout_of(env, policy, steps=200, reset_when_done=False)
    steps = rollout.collect(version=1).steps
    padding = ~steps["collector", "mask"]
    assert padding.any()
    assert not steps["state_value",][padding].any()
    assert not steps["action_log_prob",][padding].any()
    rollout.close()
