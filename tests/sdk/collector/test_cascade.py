"""A collector inside a worker of an outer one: its own workers get the weights under the same version numbers."""

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rollfleet import Collector
from rollfleet.errors import JobInvalid, WeightMismatch

if TYPE_CHECKING:
    from tests.sdk.collector.places import Collect

OPTIONS: dict[str, Any] = {"num_envs": 1, "frames_per_batch": 8}
VERSION = ("collector", "policy_version")


class Constant(nn.Module):
    """Puts its weight into the batch, and takes the action `weight % 2`."""

    def __init__(self, shown: float = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float(shown)))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        shown = self.weight.detach().expand(len(observation)).clone()
        return {"action": shown.long() % 2, "shown": shown}


class Nested(gymnasium.Env[Any, Any]):
    """Steps by a batch of an inner worker process; observes its weight, action and version."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, weights_interval: int = 0) -> None:
        self.policy = Constant(-1)
        self.inner = Collector(
            "CartPole-v1", self.policy, workers=1, num_envs=1, frames_per_batch=4, weights_interval=weights_interval
        )
        self.receive_weights = self.inner.receive_weights

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        batch = next(self.inner)
        values = (batch["shown"], batch["action"], batch[VERSION])
        assert all((value == value[:, :1]).all() for value in values)
        seen = torch.cat([value[:, 0].float() for value in values])
        assert float(self.policy.weight) == seen[0]  # the inner learner's own policy follows, too
        return seen.numpy(), 0.0, False, False, {}

    def close(self) -> None:
        self.inner.shutdown()


class Wrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Does nothing."""


def test_the_workers_of_an_environments_own_collector_act_on_the_learners_weights(collect: "Collect") -> None:
    policy = Constant(3)
    collector = collect(lambda: Wrapped(Nested()), policy, **OPTIONS)
    for version, batch in enumerate(islice(collector, 3), start=1):
        shown = 2.0 + version
        assert (batch["shown"] == shown).all()
        assert (batch[VERSION] == version).all()
        expected = torch.tensor([shown, shown % 2, version])
        assert (batch["next", "observation"] == expected).all()
        with torch.no_grad():
            policy.weight.add_(1)
    assert collector.update_policy_weights_(Constant(10)) == 4
    assert collector.update_policy_weights_(policy=Constant(20)) == 5


@pytest.mark.parametrize("weights_interval", [1, 2])
def test_the_outer_learners_version_numbers_hold_whatever_the_inner_interval_is(
    here: Callable[..., Collector], weights_interval: int
) -> None:
    policy = Constant(3)
    keywords: dict[str, Any] = {"env_kwargs": {"weights_interval": weights_interval}, "weights_interval": 2}
    for number, batch in enumerate(islice(here(Nested, policy, **keywords, **OPTIONS), 5)):
        version = 1 + number // 2
        assert (batch[VERSION] == version).all()
        assert (batch["next", "observation"][..., -1] == version).all()


def test_a_received_version_without_a_number_leaves_the_inner_interval_as_it_was(collect: "Collect") -> None:
    collector = collect("CartPole-v1", Constant(0), **OPTIONS)
    assert collector.receive_weights(Constant(1)) == 1
    assert [int(batch[VERSION].unique()) for batch in islice(collector, 3)] == [1, 2, 3]


def test_only_workers_that_were_sent_weights_pass_them_on(processes: "Collect") -> None:
    collector = processes(Nested, Constant(3), weights_interval=0, **OPTIONS)
    next(collector)
    collector.update_policy_weights_(Constant(4), worker_ids=1)
    batch = next(collector)
    assert batch["next", "observation"][:, -1].tolist() == [[3, 1, 1], [4, 0, 2]]


class WithCollector(nn.Module):
    """A policy with its own collector, whose workers run the policy's newest weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Constant(-1)
        self._inner: list[Collector] = []  # made on the worker

    def receive_weights(self, policy: nn.Module, version: int) -> None:
        assert policy is self
        if not self._inner:
            self._inner.append(Collector("CartPole-v1", policy_factory=lambda *_: Constant(-1), frames_per_batch=4))
        assert self._inner[0].receive_weights(self.net, version) == version

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        if not self._inner:  # the first call, on one observation
            seen = torch.full((len(observation), 2), -1.0)
        else:
            batch = next(self._inner[0])
            seen = torch.stack([batch["shown"][0, 0], batch[VERSION][0, 0].float()]).expand(len(observation), 2)
        return self.net(observation) | {"seen": seen.clone()}  # type: ignore[no-any-return]


def test_the_workers_of_a_policys_own_collector_act_on_the_learners_weights(collect: "Collect") -> None:
    policy = WithCollector()
    collector = collect("CartPole-v1", policy, **OPTIONS, **collect.alone)
    for version, batch in enumerate(islice(collector, 3), start=1):
        expected = torch.tensor([-1.0 if version == 1 else 10.0 * version, float(version)])
        assert (batch["seen"] == expected).all()
        with torch.no_grad():
            policy.net.weight.fill_(10.0 * (version + 1))


def test_received_weights_are_loaded_and_keep_counting_versions(collect: "Collect") -> None:
    policy = Constant(0)
    collector = collect("CartPole-v1", policy, weights_interval=0, **OPTIONS)
    next(collector)
    assert collector.receive_weights(Constant(1)) == 2
    assert policy.weight.item() == 1
    assert collector.receive_weights(Constant(2), 7) == 7
    assert collector.receive_weights(weights=Constant(5).state_dict(), version=3) == 8  # no number is used twice
    batch = next(collector)
    assert (batch["shown"] == 5).all()
    assert (batch[VERSION] == 8).all()
    assert policy.weight.item() == 5


def test_missing_or_mismatched_weights_are_refused(here: Callable[..., Collector]) -> None:
    collector = here("CartPole-v1", Constant(0), **OPTIONS)
    with pytest.raises(JobInvalid, match="update_policy_weights_"):
        collector.receive_weights()
    with pytest.raises(JobInvalid, match="`policy_or_weights` and `policy` are given at once"):
        collector.receive_weights(Constant(1), policy=Constant(2))
    with pytest.raises(WeightMismatch, match="weight: it was float32"):
        collector.receive_weights({"weight": torch.zeros(2)})
    assert collector.version == 0


def test_an_error_while_passing_weights_on_is_the_workers_error(collect: "Collect") -> None:
    class Refuses(Constant):
        def receive_weights(self, policy: nn.Module, version: int) -> None:
            raise LookupError(f"no one needs version {version}")

    with pytest.raises(Exception, match="no one needs version 1"):
        next(collect("CartPole-v1", Refuses(), **OPTIONS))
