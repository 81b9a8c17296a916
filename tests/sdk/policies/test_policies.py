"""Policies: which one acts, on which device, how it explores, and on which random numbers."""

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential
from tests.job_server import actor_critic
from tests.sdk.batches import assert_same, several
from tests.sdk.counting import showing
from tests.sdk.places import Collect
from tests.sdk.rollout.recurrent_policy import Recurrent
from torch import Tensor, nn
from torch.distributions import Normal

from rollfleet import Collector, Exploration
from rollfleet.exploration import exploration
from rollfleet.rollout.trajectory_ids import split

SMALL: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 32}


def workers_of(batch: Any) -> Tensor:
    return torch.tensor([split(int(row[0]))[0] for row in batch["collector", "traj_ids"]])


def test_the_first_own_frame_after_random_ones_has_the_initial_state(collect: Collect) -> None:
    policy = Recurrent()
    collector = collect("CartPole-v1", policy, init_random_frames=64, is_init=True, **SMALL)
    _, random, own = islice(collector, 3)
    assert (random["recurrent", "state"] == policy.start).all()
    assert (own["recurrent", "state"][:, 0] == policy.start).all()
    assert not own["is_init"][:, 0].all()
    assert (own["recurrent", "state"][:, 1] != policy.start).any()


def test_a_factory_is_called_with_the_spaces_of_one_environment(collect: Collect) -> None:
    def make(observation_space: Any, action_space: Any) -> Callable[[Tensor], dict[str, Tensor]]:
        spaces = torch.tensor([*observation_space.shape, int(action_space.n)])
        return lambda seen: {"action": torch.ones(len(seen)).long(), "spaces": spaces.expand(len(seen), 2)}

    batch = next(collect("CartPole-v1", policy_factory=make, **SMALL))
    assert (batch["action"] == 1).all()
    assert batch["spaces"].flatten(0, 1).unique(dim=0).tolist() == [[4, 2]]


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")  # torch's, of 3.13.0 alone
@pytest.mark.parametrize("compiled", [False, True])
def test_a_policy_from_a_factory_gets_the_learners_weights(collect: Collect, compiled: bool) -> None:
    """Inner workers never got the weights in pytorch/rl#3729."""

    def make(*_: object) -> Any:
        return torch.compile(showing(0), backend="eager") if compiled else showing(0)

    collector = collect("CartPole-v1", policy_factory=make, **SMALL)
    for weight in (1, 0, 1):
        collector.update_policy_weights_(showing(weight))
        assert (next(collector)["shown"] == weight).all()


def test_policies_of_a_list_of_factories_use_their_own_weights_until_others_are_sent(collect: Collect) -> None:
    factories = [lambda *_, weight=worker: showing(weight) for worker in range(collect.workers)]
    collector = collect("CartPole-v1", policy_factory=factories, **SMALL)
    for batch in islice(collector, 3):
        assert (batch["shown"] == workers_of(batch)[:, None]).all()
        assert (batch["collector", "policy_version"] == 0).all()
    assert collector.update_policy_weights_(showing(1)) == 1
    batch = next(collector)
    assert (batch["shown"] == 1).all()
    assert (batch["collector", "policy_version"] == 1).all()


def test_workers_that_were_sent_no_weights_keep_their_own(apart: Collect) -> None:
    collector = apart("CartPole-v1", policy_factory=lambda *_: showing(0), **SMALL)
    collector.update_policy_weights_(showing(1), worker_ids=1)
    batch = next(collector)
    assert (batch["shown"] == workers_of(batch)[:, None]).all()
    assert (batch["collector", "policy_version"] == batch["shown"]).all()


def test_in_mode_async_workers_need_not_wait_either(apart: Collect) -> None:
    collector = apart("CartPole-v1", policy_factory=lambda *_: showing(0), mode="async", **SMALL)
    for batch in islice(collector, 4):
        assert (batch["shown"] == 0).all()
    collector.update_policy_weights_(showing(1))
    while (batch := next(collector))["collector", "policy_version"].min() < 1:
        assert (batch["shown"] == 0).all()
    assert (batch["shown"] == 1).all()


class OnDevice(nn.Module):
    """Records whether its observations and its buffer are on `meta`; has no weights to send."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("anchor", torch.zeros(1), persistent=False)

    anchor: Tensor

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        on_meta = torch.tensor([observation.is_meta, self.anchor.is_meta])
        return {"action": torch.zeros(len(observation)).long(), "on_meta": on_meta.expand(len(observation), 2)}


@pytest.mark.parametrize("devices", ["all", "the first alone"])
def test_policy_and_observations_are_on_policy_device(collect: Collect, devices: str) -> None:
    device: Any = "meta" if devices == "all" else ["meta", "cpu"][: collect.workers]
    policy = OnDevice()
    batch = next(collect("CartPole-v1", policy, policy_device=device, **SMALL))
    expected = (workers_of(batch) == 0) | (devices == "all")
    assert torch.equal(batch["on_meta"], expected[:, None, None].expand(batch["on_meta"].shape))
    assert policy.anchor.device.type == "cpu"  # the learner's own policy stays on its device


@pytest.mark.parametrize("how", list(Exploration))
def test_a_policy_sees_the_jobs_exploration(collect: Collect, how: Exploration) -> None:
    def policy(observation: Tensor) -> dict[str, Tensor]:
        now = torch.tensor(list(Exploration).index(exploration()))
        return {"action": torch.zeros(len(observation)).long(), "exploration": now.expand(len(observation))}

    batch = next(collect("CartPole-v1", policy, exploration=how.lower(), **SMALL))
    assert (batch["exploration"] == list(Exploration).index(how)).all()
    assert exploration() is Exploration.RANDOM


@pytest.mark.parametrize("how", ["random", "mode"])
def test_the_built_in_policy_samples_or_takes_the_most_likely(collect: Collect, how: str) -> None:
    torch.manual_seed(0)
    policy = actor_critic()
    batch = next(collect("CartPole-v1", policy, exploration=how, **SMALL))
    with torch.no_grad():
        most_likely = policy.actor(batch["observation"]).argmax(-1)
    assert torch.equal(batch["action"], most_likely) == (how == "mode")


@pytest.mark.parametrize(
    ("how", "sampled"), [("random", True), ("mode", False), ("mean", False), ("deterministic", False)]
)
def test_tensordicts_modules_see_the_jobs_exploration(here: Collect, how: str, sampled: bool) -> None:
    policy = TensorDictSequential(
        TensorDictModule(lambda seen: (seen[:, :1], torch.ones(len(seen), 1)), ["observation"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=Normal),
    )
    batch = next(here("Pendulum-v1", policy, exploration=how, **SMALL))
    assert torch.equal(batch["action"], batch["loc"]) != sampled


def sampler(observation: Tensor) -> Tensor:
    return torch.randint(2, (len(observation),))


def test_no_two_environments_are_alike_and_no_two_workers_act_alike(collect: Collect) -> None:
    """48 environments had one seed in stable-baselines#1120; random actions had none in tianshou#1083."""
    batch = next(collect("CartPole-v1", num_envs=8, frames_per_batch=8 * 16 * collect.workers))
    assert len(batch["observation"][:, 0].unique(dim=0)) == len(batch)
    assert len(batch["action"].unique(dim=0)) == len(batch)


def generators() -> list[str]:
    return [str(state) for state in (random.getstate(), np.random.get_state(), torch.get_rng_state().tolist())]


def test_the_learners_own_random_numbers_are_neither_used_nor_changed(here: Callable[..., Collector]) -> None:
    runs = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        before = generators()
        runs.append(several(here("CartPole-v1", sampler, **SMALL)))
        assert generators() == before
    assert_same(*runs)


def test_set_seed_returns_the_next_seed_and_repeats_the_first_batch_of_a_seed(collect: Collect) -> None:
    plain = several(collect("CartPole-v1", sampler, seed=5, **SMALL, **collect.alone))
    collector = collect("CartPole-v1", sampler, seed=1, **SMALL, **collect.alone)
    next(collector)
    assert collector.set_seed(5, static_seed=True) == 5
    assert collector.set_seed(5) == 6
    for _ in range(2):  # also if the seed is unchanged
        after = several(collector)
        for key in ("observation", "action", ("next", "reward"), ("next", "done")):
            assert torch.equal(after[key], plain[key]), key
        collector.set_seed(5)


def test_ids_stay_unique_when_a_seed_is_set(collect: Collect) -> None:
    """A seed and `split_trajs` together broke them in pytorch/rl#3238."""
    collector = collect("CartPole-v1", **SMALL)
    before = {int(each) for each in next(collector)["collector", "traj_ids"].unique()}
    collector.set_seed(0)
    after = {int(each) for each in next(collector)["collector", "traj_ids"].unique()}
    assert not before & after
