"""Policies of TorchRL on its environments, in each place: what they act, and what of them reaches the batch."""

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.wrappers import TransformAction
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from tests.sdk.places import Collect
from tests.sdk.rollout.torchrl_envs import KINDS, batched, cartpole, counted, vmas
from tests.sdk.rollout.torchrl_reference import assert_collects, torchrls
from torch import nn
from torchrl.data import Bounded, OneHot
from torchrl.envs import GymEnv, GymWrapper
from torchrl.modules import (
    AdditiveGaussianModule,
    EGreedyModule,
    GRUModule,
    LSTMModule,
    MultiAgentMLP,
    OneHotCategorical,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    QValueActor,
    RandomPolicy,
    TanhNormal,
)

import rollfleet
from rollfleet.errors import EnvironmentInvalid, JobInvalid, PolicyInvalid

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL and the simulators

TORQUE, SIDES = Bounded(-2.0, 2.0, (1,)), OneHot(2)


class Shown(nn.Module):
    """Puts its weight into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, observation: Any) -> Any:
        action = torch.nn.functional.one_hot(torch.zeros(observation.shape[:-1], dtype=torch.int64), 2)
        return action, self.weight.detach().expand(observation.shape[:-1]).clone()


def test_each_frame_of_a_whole_trajectory_has_the_version_that_acted(collect: Collect) -> None:
    policy = TensorDictModule(Shown(), in_keys=["observation"], out_keys=["action", "shown"])
    collector = collect(cartpole, policy, num_envs=3, frames_per_batch=12 * collect.workers, trajs_per_batch=1)
    several = False
    for number in range(1, 9):
        with torch.no_grad():
            next(policy.parameters()).fill_(number)
        batch = next(collector)
        batch = batch[batch["collector", "mask"]]
        assert (batch["collector", "policy_version"] == batch["shown"]).all()
        several |= len(batch["shown"].unique()) > 1
    assert several


def pendulum() -> Any:
    return GymEnv("Pendulum-v1")


def mean() -> Any:
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])


def gaussian() -> Any:
    net = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())
    module = TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"])
    return ProbabilisticActor(
        module, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True, spec=TORQUE
    )


def categorical() -> Any:
    module = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"])
    return ProbabilisticActor(module, in_keys=["logits"], distribution_class=OneHotCategorical)


def greedy() -> Any:
    actor = QValueActor(nn.Linear(4, 2), in_keys=["observation"], spec=SIDES)
    return TensorDictSequential(actor, EGreedyModule(spec=SIDES, eps_init=0.5, annealing_num_steps=10))


def recurrent(kind: Any = LSTMModule) -> Any:
    core = kind(input_size=4, hidden_size=3, in_key="observation", out_key="hidden")
    return TensorDictSequential(core, TensorDictModule(nn.Linear(3, 2), in_keys=["hidden"], out_keys=["action"]))


class OfTensors(nn.Linear):
    """A policy that takes an observation by its name, and knows nothing of TensorDicts."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return super().forward(observation)


def of_agents() -> Any:
    net = MultiAgentMLP(16, 2, n_agents=2, centralized=False, share_params=True, depth=1, num_cells=8)
    bounded = nn.Sequential(net, nn.Tanh())  # VMAS refuses actions out of range
    return TensorDictModule(bounded, in_keys=[("agents", "observation")], out_keys=[("agents", "action")])


POLICIES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "mean": (pendulum, mean),
    "gaussian": (pendulum, gaussian),
    "categorical": (counted, categorical),
    "greedy": (cartpole, greedy),
    "noisy": (pendulum, lambda: TensorDictSequential(mean(), AdditiveGaussianModule(spec=TORQUE))),
    "drifting": (pendulum, lambda: TensorDictSequential(mean(), OrnsteinUhlenbeckProcessModule(spec=TORQUE))),
    "lstm": (cartpole, recurrent),
    "gru": (cartpole, lambda: recurrent(GRUModule)),
    "of-tensors": (cartpole, lambda: OfTensors(4, 2)),
    "of-agents": (vmas, of_agents),
    "random": (cartpole, lambda: RandomPolicy(SIDES)),
}


NEED_TRANSFORMS = ("drifting", "lstm", "gru")
OF_OWN_STATE = ("gaussian", "greedy", "drifting", "lstm", "of-tensors", "of-agents")
"""Policies whose state, or call, differs from those of the others."""


def policy_and_batches(kind: str) -> tuple[Any, list[TensorDict]]:
    make, make_policy = POLICIES[kind]
    policy = make_policy()
    return policy, list(torchrls(make, policy, auto_register_policy_transforms=kind in NEED_TRANSFORMS))


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_acts_as_in_torchrls_collector(here: Collect, kind: str) -> None:
    assert_collects(here, POLICIES[kind][0], *policy_and_batches(kind))


@pytest.mark.parametrize(
    "kind", [kind if kind in OF_OWN_STATE else pytest.param(kind, marks=pytest.mark.slow) for kind in POLICIES]
)
def test_a_policy_of_other_workers_acts_as_in_torchrls_collector(apart: Collect, kind: str) -> None:
    assert_collects(apart, POLICIES[kind][0], *policy_and_batches(kind))


def test_the_steps_of_an_exploration_module_reach_workers(collect: Collect) -> None:
    actor = QValueActor(nn.Linear(4, 2), in_keys=["observation"], spec=SIDES)
    with torch.no_grad():
        actor.module[0].module.bias.copy_(torch.tensor([100.0, 0.0]))
    noise = EGreedyModule(spec=SIDES, eps_init=1.0, eps_end=0.0, annealing_num_steps=1)
    frames = 16 * collect.alone.get("workers", collect.workers)  # threads share TensorDict's interaction type
    collector = collect(cartpole, TensorDictSequential(actor, noise), frames_per_batch=frames, **collect.alone)
    assert next(collector)["action"][..., 1].any()
    noise.step(1)
    assert not next(collector)["action"][..., 1].any()


def test_random_frames_have_zeros_under_the_policys_own_keys(collect: Collect) -> None:
    frames = 8 * collect.workers
    amounts = {"frames_per_batch": frames, "total_frames": 2 * frames, "init_random_frames": frames}
    first, second = collect(pendulum, gaussian(), **amounts)
    assert not first["loc"].any()
    assert first["action"].any()
    assert second["loc"].any()
    assert set(first.keys(True, True)) == set(second.keys(True, True))


def test_whole_trajectories_are_padded_under_a_mask(collect: Collect) -> None:
    batch = next(collect(counted, frames_per_batch=16, trajs_per_batch=2))
    mask = batch["collector", "mask"]
    assert mask.any(1).all()
    assert (batch["step_count"].squeeze(-1)[mask] == torch.cat([torch.arange(int(each)) for each in mask.sum(1)])).all()
    assert batch["next", "done"].squeeze(-1).sum(1).eq(1).all()


def test_options_append_torchrls_transforms(collect: Collect) -> None:
    batch = next(collect(cartpole, frames_per_batch=16, max_frames_per_traj=3, is_init=True))
    assert int(batch["next", "step_count"].max()) == 3
    assert batch["next", "truncated"][batch["next", "step_count"] == 3].all()
    assert torch.equal(batch["is_init"], batch["step_count"] == 0)


def test_num_envs_makes_a_batch_of_single_environments(collect: Collect) -> None:
    batch = next(collect(counted, frames_per_batch=24, num_envs=3))
    assert batch.shape[0] == 3 * collect.workers
    assert len(set(batch["collector", "traj_ids"][:, 0].tolist())) == batch.shape[0]


def test_random_actions_of_several_environments_obey_their_masks(here: Collect) -> None:
    batch = next(here(KINDS["masked-by-a-transform"], frames_per_batch=80, num_envs=2))
    assert batch["mask"].gather(-1, batch["action"].unsqueeze(-1)).all()


def test_an_environment_object_collects_in_this_process(here: Collect) -> None:
    assert next(here(batched(), frames_per_batch=12)).shape == (3, 4)


def test_evaluation_runs_whole_episodes(collect: Collect) -> None:
    evaluation = {"every": 1, "episodes": 2}
    collector = collect(cartpole, categorical(), frames_per_batch=16, total_frames=64, evaluation=evaluation)
    list(collector)
    assert all(each.mean_return == each.mean_length for each in collector.evaluations)


class Alternating(Shown):
    def forward(self, step_count: Any) -> Any:
        return torch.nn.functional.one_hot(step_count[..., 0] % 2, 2)


def test_an_evaluated_policy_may_read_the_step_count_of_the_job(here: Collect) -> None:
    policy = TensorDictModule(Alternating(), in_keys=["step_count"], out_keys=["action"])
    evaluation = {"every": 1, "episodes": 2}
    collector = here(cartpole, policy, frames_per_batch=16, total_frames=32, step_count=True, evaluation=evaluation)
    list(collector)
    assert [each.version for each in collector.evaluations] == [1, 2]


class Wrong(GymEnv):  # type: ignore[misc]
    def _step(self, tensordict: Any) -> Any:
        raise ValueError("broken")


class Double(GymEnv):  # type: ignore[misc]
    """Observes a dtype that its spec does not name."""

    def _step(self, tensordict: Any) -> Any:
        found = super()._step(tensordict)
        return found.set("observation", found["observation"].double())


def test_an_error_of_a_policy_is_not_blamed_on_the_environment() -> None:
    def broken(tensordict: TensorDict) -> TensorDict:
        raise KeyError("of the policy")

    collector = rollfleet.Collector(lambda: Double("CartPole-v1"), broken, frames_per_batch=8)
    with collector, pytest.raises(KeyError, match="of the policy"):
        next(collector)


ONES: Any = torch.ones


def test_actions_may_be_integers_for_floats_and_binary_ones_floats_as_in_torchrl() -> None:
    with rollfleet.Collector(pendulum, lambda observation: ONES(1).long(), frames_per_batch=8) as collector:
        assert next(collector)["action"].equal(ONES(1, 8, 1).long())

    def switched() -> GymWrapper:
        space = gymnasium.spaces.MultiBinary(2)
        return GymWrapper(TransformAction(gymnasium.make("CartPole-v1"), lambda action: int(action.any()), space))

    with rollfleet.Collector(switched, lambda observation: ONES(2), frames_per_batch=8) as collector:
        assert next(collector)["action"].equal(ONES(1, 8, 2))


@pytest.mark.parametrize(
    ("error", "text", "env", "keywords"),
    [
        (
            PolicyInvalid,
            r"the policy's 'action' is torch.int64 \[\]; expected torch.int64 \[2\] from OneHot of environment GymEnv",
            cartpole,
            {"policy": lambda observation: ONES((), dtype=torch.int64)},
        ),
        (
            PolicyInvalid,
            r"'action' is torch.float32 \[2, 1\]; expected torch.int64 \[2, 2\] from OneHot of environment SerialEnv",
            cartpole,
            {"policy": lambda observation: ONES((2, 1)), "num_envs": 2},
        ),
        (
            PolicyInvalid,
            r"'action' is torch.float32 \[\]; expected torch.int64 \[\] from Categorical of environment GymEnv",
            lambda: GymEnv("CartPole-v1", categorical_action_encoding=True),
            {"policy": lambda observation: ONES(())},
        ),
        (EnvironmentInvalid, r"batch size \[3\], but 1 are asked for; ask for 3 \(`num_envs`", batched, {}),
        (EnvironmentInvalid, "fails torchrl.envs.utils.check_env_specs: broken", lambda: Wrong("CartPole-v1"), {}),
        (EnvironmentInvalid, "remove `reset_when_done`", cartpole, {"reset_when_done": False}),
        (EnvironmentInvalid, "set_info_dict_reader", cartpole, {"info_keys": ("x",)}),
        (EnvironmentInvalid, "remove `episode_label`", cartpole, {"episode_label": "x"}),
        (EnvironmentInvalid, "has `step_count` already", counted, {"max_frames_per_traj": 5}),
        (EnvironmentInvalid, "says backend: TorchRL; return an EnvBase", lambda: 5, {"backend": "torchrl"}),
        (
            PolicyInvalid,
            "takes state, x, and the environment has the observations",
            cartpole,
            {"policy": lambda state, x: x},
        ),
        (JobInvalid, "num_envs is 2, but the EnvBase has 3", batched(), {"num_envs": 2, "frames_per_batch": 8}),
        (JobInvalid, "an EnvBase object cannot be moved", batched(), {"workers": 1, "frames_per_batch": 9}),
    ],
)
def test_bad_input_is_one_error_that_says_what_to_write(
    error: type[Exception], text: str, env: Any, keywords: dict[str, Any]
) -> None:
    with pytest.raises(error, match=text):
        next(rollfleet.Collector(env, **{"frames_per_batch": 12} | keywords))
