"""A collector inside a worker of a larger one: weights go on to its own workers, under the learner's numbers."""

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
    """Says its weight, and takes the action that is the weight modulo 2."""

    def __init__(self, says: float = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float(says)))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        says = self.weight.detach().expand(len(observation)).clone()
        return {"action": says.long() % 2, "says": says}


class Nested(gymnasium.Env[Any, Any]):
    """Each step is a batch of two inner worker processes: observes what each said, took, and by which version."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.policy = Constant(-1)
        self.inner = Collector(
            "CartPole-v1",
            self.policy,
            workers=2,
            start_method="fork",
            num_envs=1,
            frames_per_batch=4,
            weights_interval=0,
        )
        self.receive_weights = self.inner.receive_weights

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(6, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        batch = next(self.inner)
        values = (batch["says"], batch["action"], batch[VERSION])
        assert all((value == value[:, :1]).all() for value in values)
        seen = torch.cat([value[:, 0].float() for value in values])
        assert float(self.policy.weight) == seen[0]  # the inner learner's own policy follows, too
        return seen.numpy(), 0.0, False, False, {}

    def close(self) -> None:
        self.inner.shutdown()


class Wrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has nothing to say."""


def test_the_workers_of_an_environments_own_collector_act_on_the_learners_weights(collect: "Collect") -> None:
    policy = Constant(3)
    collector = collect(lambda: Wrapped(Nested()), policy, **OPTIONS)
    for version, batch in enumerate(islice(collector, 3), start=1):
        says = 2.0 + version
        assert (batch["says"] == says).all()
        assert (batch[VERSION] == version).all()
        expected = torch.tensor([says, says, says % 2, says % 2, version, version])
        assert (batch["next", "observation"] == expected).all()
        with torch.no_grad():
            policy.weight.add_(1)
    assert collector.update_policy_weights_(Constant(10)) == 4
    assert collector.update_policy_weights_(policy=Constant(20)) == 5


def test_only_those_workers_pass_weights_on_that_were_sent_them(apart: "Collect") -> None:
    collector = apart(Nested, Constant(3), weights_interval=0, **OPTIONS)
    next(collector)
    collector.update_policy_weights_(Constant(4), worker_ids=1)
    batch = next(collector)
    assert batch["next", "observation"][:, -1].tolist() == [[3, 3, 1, 1, 1, 1], [4, 4, 0, 0, 2, 2]]


class WithCollector(nn.Module):
    """A policy that has a collector of its own: it looks at what others would do, by its own newest weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Constant(-1)
        self._inner: list[Collector] = []  # made where it acts

    def receive_weights(self, policy: nn.Module, version: int) -> None:
        assert policy is self
        if not self._inner:
            self._inner.append(Collector("CartPole-v1", policy_factory=lambda *_: Constant(-1), frames_per_batch=4))
        assert self._inner[0].receive_weights(self.net, version) == version

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        if not self._inner:  # a first look at what comes out
            seen = torch.full((len(observation), 2), -1.0)
        else:
            batch = next(self._inner[0])
            seen = torch.stack([batch["says"][0, 0], batch[VERSION][0, 0].float()]).expand(len(observation), 2)
        return self.net(observation) | {"seen": seen.clone()}  # type: ignore[no-any-return]


def test_the_workers_of_a_policys_own_collector_act_on_the_learners_weights(collect: "Collect") -> None:
    policy = WithCollector()
    collector = collect("CartPole-v1", policy, **OPTIONS, **collect.alone)
    for version, batch in enumerate(islice(collector, 3), start=1):
        expected = torch.tensor([-1.0 if version == 1 else 10.0 * version, float(version)])
        assert (batch["seen"] == expected).all()
        with torch.no_grad():
            policy.net.weight.fill_(10.0 * (version + 1))


def test_weights_that_are_received_are_loaded_and_numbered_on(collect: "Collect") -> None:
    policy = Constant(0)
    collector = collect("CartPole-v1", policy, weights_interval=0, **OPTIONS)
    next(collector)
    assert collector.receive_weights(Constant(1)) == 2
    assert policy.weight.item() == 1
    assert collector.receive_weights(Constant(2), 7) == 7
    assert collector.receive_weights(weights=Constant(5).state_dict(), version=3) == 8  # no number is given twice
    batch = next(collector)
    assert (batch["says"] == 5).all()
    assert (batch[VERSION] == 8).all()
    assert policy.weight.item() == 5


def test_weights_that_are_none_or_do_not_fit_are_refused(here: Callable[..., Collector]) -> None:
    collector = here("CartPole-v1", Constant(0), **OPTIONS)
    with pytest.raises(JobInvalid, match="update_policy_weights_"):
        collector.receive_weights()
    with pytest.raises(JobInvalid, match="`policy_or_weights` and `policy` are given at once"):
        collector.receive_weights(Constant(1), policy=Constant(2))
    with pytest.raises(WeightMismatch, match="weight: it was float32"):
        collector.receive_weights({"weight": torch.zeros(2)})
    assert collector.version == 0


def test_an_error_in_passing_weights_on_is_the_workers(collect: "Collect") -> None:
    class Refuses(Constant):
        def receive_weights(self, policy: nn.Module, version: int) -> None:
            raise LookupError(f"nobody wants version {version}")

    with pytest.raises(Exception, match="nobody wants version 1"):
        next(collect("CartPole-v1", Refuses(), **OPTIONS))
