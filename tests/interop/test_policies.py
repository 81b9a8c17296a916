"""TorchRL's policies act in Rollfleet's collectors as in TorchRL's own."""

from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.spaces import Box, Dict
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from tests.sdk.rollouts import Sampling
from torch import Tensor
from torchrl import collectors, data, envs, modules

import rollfleet
from rollfleet.errors import PolicyInvalid

ENVS, FRAMES = 2, 600
LIMIT = 40  # frames of an episode
PENDULUM = partial(gymnasium.make, "Pendulum-v1", max_episode_steps=LIMIT)


def noisy(**process: float) -> TensorDictSequential:
    """The action 0, with the noise of an Ornstein-Uhlenbeck process."""
    silent = TensorDictModule(lambda seen: torch.zeros(*seen.shape[:-1], 1), ["observation"], ["action"])
    spec = data.Bounded(-2, 2, (1,))
    return TensorDictSequential(silent, modules.OrnsteinUhlenbeckProcessModule(spec, **process))


def theirs(policy: Any, *, frames_per_batch: int) -> TensorDict:
    env = envs.TransformedEnv(envs.SerialEnv(ENVS, lambda: envs.GymWrapper(PENDULUM())), envs.InitTracker())
    collector = collectors.Collector(
        env, policy, frames_per_batch=frames_per_batch, total_frames=FRAMES, auto_register_policy_transforms=False
    )
    try:
        batch: TensorDict = torch.cat([each.clone() for each in collector], -1)
    finally:
        collector.shutdown()
    return batch


def ours(policy: Any, *, env: Any = PENDULUM, frames_per_batch: int = 60, **keywords: Any) -> TensorDict:
    options = {"num_envs": ENVS, "frames_per_batch": frames_per_batch, "total_frames": FRAMES} | keywords
    with rollfleet.Collector(env, policy, **options) as collector:
        batch: TensorDict = torch.cat(list(collector), -1)
    return batch


@pytest.mark.parametrize("frames_per_batch", [60, 100])
def test_the_state_of_noise_is_that_of_torchrls_collector_step_by_step(frames_per_batch: int) -> None:
    """A process that drifts to 1 without chance."""
    process = {"mu": 1.0, "sigma": 0.0, "theta": 0.5, "dt": 0.1}
    expected, found = (collect(noisy(**process), frames_per_batch=frames_per_batch) for collect in (theirs, ours))
    assert expected["is_init"].sum() > 2 * ENVS
    assert torch.equal(found["is_init"], expected["is_init"])
    assert torch.equal(found["action"], expected["action"])
    private = {"_ou_prev_noise", "_ou_steps"}
    assert not private & {*found.keys(), *expected.keys()}


@pytest.mark.parametrize("num_envs", [1, 3])
def test_torchrls_random_policy_acts(num_envs: int) -> None:
    of_one, of_all = data.Bounded(-2, 2, (1,)), data.Bounded(-2, 2, (num_envs, 1))
    for spec in (of_one, of_all):
        batch = ours(modules.RandomPolicy(spec), num_envs=num_envs)
        assert batch["action"].abs().max() <= 2
        assert batch["action"].flatten().unique().numel() == FRAMES
        assert spec.shape[-1] == 1  # the given spec is unchanged
    with pytest.raises(PolicyInvalid, match=r"action has shape \[3, 2\]; expected int64 \[3\] from Discrete"):
        ours(modules.RandomPolicy(data.OneHot(2)), env="CartPole-v1", num_envs=3)
    categorical = data.Categorical(2)
    assert set(ours(modules.RandomPolicy(categorical), env="CartPole-v1")["action"].unique().tolist()) == {0, 1}


def test_torchrls_random_policy_of_several_actions_acts() -> None:
    specs = {"left": data.Bounded(-1, 1, (1,)), "right": data.Bounded(0, 1, (2,))}
    levers = partial(Sampling, Box(-1, 1, (2,)), Dict(left=Box(-1, 1, (1,)), right=Box(0, 1, (2,))))
    batch = ours(modules.RandomPolicy(data.Composite(action=data.Composite(specs))), env=levers)
    assert batch["action", "right"].shape == (ENVS, FRAMES // ENVS, 2)


def test_one_decision_is_executed_over_several_steps_as_in_torchrls_collector() -> None:
    """`MultiStepActorWrapper` keeps the rest of its decision under keys that are not in its `in_keys`."""

    def decide(seen: Tensor) -> Tensor:
        return torch.linspace(-1, 1, 3).expand(*seen.shape[:-1], 3).unsqueeze(-1).clone()

    expected, found = (
        collect(
            modules.MultiStepActorWrapper(TensorDictModule(decide, ["observation"], ["action"]), n_steps=3),
            frames_per_batch=60,
        )
        for collect in (theirs, ours)
    )
    assert found["action"][0, :7, 0].tolist() == [-1, 0, 1, -1, 0, 1, -1]
    for key in ("action", "counter", "is_init"):
        assert torch.equal(found[key], expected[key]), key
