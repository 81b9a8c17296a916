"""Policies that a rollout accepts, and its errors for those that it refuses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from tensordict.nn.probabilistic import interaction_type
from tests.sdk.rollouts import Observing, Sampling, always_0, mlp, rollout_of
from torch import Tensor, nn

from rollfleet.data.batch import to_batch
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.errors import PolicyInvalid
from rollfleet.exploration import Exploration, exploration
from rollfleet.policies.actor_critic import ActorCritic
from rollfleet.policies.factory import Policy
from rollfleet_api.job import EnvSpec

CARTPOLE = EnvSpec(id="CartPole-v1", num_envs=3)
PENDULUM = EnvSpec(id="Pendulum-v1", num_envs=2)


class Still(nn.Module):
    """Always takes action 0."""

    def forward(self, observation: Tensor) -> Tensor:
        return always_0(observation)


def test_all_outputs_of_a_policy_are_in_the_batch() -> None:
    def policy(observation: Tensor) -> dict[object, object]:
        return {
            "nested": {"half": observation.half()},
            ("also", "nested"): observation.sum(-1).bfloat16(),
            "flag": observation > 0,
            "action": always_0(observation).int(),
        }

    batch = to_batch(rollout_of(CARTPOLE, policy).collect(version=0))
    assert batch["action"].dtype == torch.int64
    assert torch.equal(batch["nested", "half"], batch["observation"].half())
    assert torch.equal(batch["also", "nested"], batch["observation"].sum(-1).bfloat16())
    assert torch.equal(batch["flag"], batch["observation"] > 0)


def test_an_action_of_bfloat16_keeps_its_value() -> None:
    rollout = rollout_of(PENDULUM, lambda observation: torch.full((2, 1), 0.5, dtype=torch.bfloat16))
    batch = to_batch(rollout.collect(version=0))
    assert (batch["action"] == 0.5).all()


def test_an_action_that_the_dtype_of_its_space_cannot_hold_is_refused() -> None:
    def policy(observation: Tensor) -> Tensor:
        return torch.full((2, 1), 255 if first else 256)

    lamp = partial(Sampling, Box(-1, 1, (2,)), Box(0, 255, (1,), np.uint8))
    rollout = rollout_of(SerialVectorEnv([lamp] * 2), policy)
    first = True
    assert (to_batch(rollout.collect(version=0))["action"] == 255).all()
    first = False
    with pytest.raises(PolicyInvalid, match=r"'action' with 256, which the action space's uint8 cannot hold"):
        rollout.collect(version=0)


def test_a_tensordict_that_the_policy_filled_is_read() -> None:
    def policy(observation: Tensor) -> TensorDict:
        return TensorDict({"observation": observation, "action": always_0(observation)}, batch_size=[len(observation)])

    assert (to_batch(rollout_of(CARTPOLE, policy).collect(version=0))["action"] == 0).all()


def test_modules_run_in_inference_mode_and_callables_without_gradients() -> None:
    seen = []

    class Module(nn.Module):
        def forward(self, observation: Tensor) -> Tensor:
            seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
            return always_0(observation)

    module = Module()
    rollout_of(CARTPOLE, module).collect(version=0)
    rollout_of(CARTPOLE, lambda observation: module(observation)).collect(version=0)
    assert set(seen) == {(True, False), (False, False)}


class Curious(Observing):
    """Trains a network in each step; two opponents show in the reward how they act. Episodes of three frames."""

    observation_space = Box(-1, 1, (2,))
    length = 3

    def __init__(self) -> None:
        self.network = nn.Linear(2, 1)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, _, *rest = super().step(action)
        self.network(torch.from_numpy(seen)).sum().backward()
        random = exploration() is Exploration.RANDOM and interaction_type() is None
        return seen, float(random and not torch.is_inference_mode_enabled()), *rest


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize(
    "policy",
    [
        always_0,
        Still(),
        TensorDictModule(Still(), ["observation"], ["action"]),
        ActorCritic(Box(-1, 1, (2,)), Discrete(2)),
        None,
    ],
)
def test_an_environment_steps_outside_of_the_policys_modes(policy: Policy | None, mode: AutoresetMode) -> None:
    """A curiosity wrapper trains, and an opponent inside of the environment explores while the policy does not."""
    rollout = rollout_of(SyncVectorEnv([Curious] * 2, autoreset_mode=mode), policy, exploration=Exploration.MODE)
    for random_actions in (True, False, False):
        assert (rollout.collect(version=0, random_actions=random_actions).steps["next", "reward"] == 1).all()
    with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):  # the caller's own modes stay
        rollout.collect(version=0)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda o: {"value": o}, r"returned 'value', but no 'action'; expected one of int64 \[3\] from Discrete\(2\)"),
        (lambda o: always_0(o)[:, None], r"action has shape \[3, 1\]; expected int64 \[3\] from Discrete\(2\)"),
        (lambda o: always_0(o).float(), r"dtype torch.float32; expected int64 \[3\]"),
        (
            lambda o: {"action": always_0(o), "x": torch.zeros(4)},
            r"'x' of the policy has shape \[4\]; expected \[3, ...\]",
        ),
        (lambda o: {"action": always_0(o), "x": 1}, r"'x' of the policy is a int; expected a tensor"),
        (lambda o: {"action": always_0(o), "next": {"a": o}}, "returned 'next', which is reserved in a batch"),
        (lambda o: {"action": always_0(o), "action_log_prob": o[:, :1]}, r"shape \[3, 1\]; expected \[3\]: one number"),
        (
            lambda o: {"action": always_0(o), "x": o, ("x", "y"): o},
            r"a batch cannot hold what the policy returned: key \('x', 'y'\) lies inside 'x', .*; rename one of them",
        ),
        (lambda o: {"action": always_0(o), 3: o}, r"returned key 3; keys are strings"),
        (lambda o: o.numpy(), r"returned a ndarray; return a tensor of actions"),
        (lambda o: (o, o), r"returned a tuple; .* such as \{'action': action, 'action_log_prob': log_prob\}"),
    ],
)
def test_invalid_outputs_of_a_policy_are_refused(policy: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(PolicyInvalid, match=message):
        rollout_of(CARTPOLE, policy).collect(version=0)


def test_a_failed_first_call_is_reported_with_the_policys_input() -> None:
    policy = nn.Linear(5, 2)  # CartPole's observations have 4 numbers
    rollout = rollout_of(CARTPOLE, policy)
    with pytest.raises(PolicyInvalid, match=r"an observation torch.float32 \[3, 4\]: RuntimeError") as raised:
        rollout.collect(version=1)
    assert isinstance(raised.value.__cause__, RuntimeError)
    rollout.close()


def test_later_errors_of_a_policy_pass_through_unchanged() -> None:
    calls = []

    def policy(observation: Tensor) -> Tensor:
        calls.append(observation)
        if len(calls) > 20:
            raise RuntimeError("worn out")
        return always_0(observation)

    rollout = rollout_of(CARTPOLE, policy)
    rollout.collect(version=1)
    rollout.collect(version=1)
    with pytest.raises(RuntimeError, match="worn out"):
        rollout.collect(version=1)
    rollout.close()


def test_a_policy_that_changes_its_outputs_is_refused() -> None:
    size = [2]
    rollout = rollout_of(CARTPOLE, lambda o: {"action": always_0(o), "x": torch.zeros(3, size[0])})
    rollout.collect(version=0)
    size[0] = 1
    with pytest.raises(PolicyInvalid, match=r"first returned .* 'x' torch.float32 \[3, 2\], and now .* \[3, 1\]"):
        rollout.collect(version=1)


def test_a_policy_must_be_callable() -> None:
    with pytest.raises(PolicyInvalid, match="must be callable"):
        rollout_of(CARTPOLE, "mlp")


@pytest.mark.parametrize("spec", [CARTPOLE, PENDULUM], ids=["discrete", "box"])
@pytest.mark.parametrize("between", ["nothing", "random actions", "a hook"])
def test_sampled_actions_do_not_depend_on_the_length_of_fragments(spec: EnvSpec, between: str) -> None:
    """The built-in policy draws noise for many steps at a time. A hook makes it be called at each step instead."""

    def frames(steps: int) -> TensorDict:
        policy, parts = mlp(spec), []
        rollout, hooks = rollout_of(spec, policy), list[Any]()
        for start in range(0, 120, steps):
            if between == "a hook" and start == 40:
                hooks.append(policy.register_forward_hook(lambda *_: None))
            random_actions = between == "random actions" and 40 <= start < 80
            parts.append(to_batch(rollout.collect(version=0, steps=steps, random_actions=random_actions)).clone())
            if start + steps == 80:
                for hook in hooks:
                    hook.remove()
        rollout.close()
        return torch.cat(parts, dim=1)

    whole = frames(40)
    for steps in (5, 20):
        cut = frames(steps)
        for key in ("action", "observation", ("next", "reward"), ("collector", "traj_ids")):
            assert torch.equal(cut[key], whole[key]), key
        for key in ("action_log_prob", "state_value"):
            torch.testing.assert_close(cut[key], whole[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["callable", "module"])
def test_random_actions_call_the_policy_once_to_learn_its_outputs(kind: str) -> None:
    calls = []

    def policy(observation: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(observation)
        return always_0(observation), torch.ones(len(observation), 2).bfloat16()

    if kind == "module":
        acts: Policy = TensorDictModule(policy, in_keys=["observation"], out_keys=["action", "x"])
    else:
        acts = lambda observation: dict(zip(("action", "x"), policy(observation), strict=True))  # noqa: E731
    rollout = rollout_of(CARTPOLE, acts)
    for _ in range(2):
        batch = to_batch(rollout.collect(version=0, random_actions=True))
        assert len(calls) == 1
        assert batch["action"].any()
        assert batch["x"].dtype == torch.bfloat16
        assert not batch["x"].any()
    assert to_batch(rollout.collect(version=0))["x"].all()
    assert len(calls) == 1 + 8


def test_numbers_drawn_to_learn_the_outputs_are_drawn_again() -> None:
    def random(observation: Tensor) -> Tensor:
        return torch.randint(2, (len(observation),))

    plain, later = (rollout_of(CARTPOLE, random) for _ in range(2))
    later.collect(version=0, random_actions=True)
    assert torch.equal(later.collect(version=0).steps["action",], plain.collect(version=0).steps["action",])
