"""Evaluation: whole episodes on some versions, with the same returns in every place, beside training."""

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.job_server import actor_critic
from tests.sdk.counting import always_0
from tests.sdk.places import CollectInProcesses
from tests.waiting import wait_until
from torch import Tensor, nn

from rollfleet import ActorCritic, Collector
from rollfleet.errors import JobInvalid
from rollfleet.exploration import Exploration, exploration
from rollfleet_api.messages import Evaluation

BATCHES = 9
OPTIONS: dict[str, Any] = {"num_envs": 4, "frames_per_batch": 64, "total_frames": 64 * BATCHES, "seed": 3}
EVERY_3: dict[str, object] = {"every": 3, "episodes": 6}


def untrained() -> ActorCritic:
    torch.manual_seed(0)
    return actor_critic()


def trained(collector: Collector, policy: nn.Module, *, awaits: Callable[[int], bool] = lambda version: False) -> Any:
    """Change the weights after each batch. Returns the batches, and the evaluations without their times."""
    batches, noise = [], torch.Generator().manual_seed(7)
    for batch in collector:
        batches.append(batch)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=0.2)
        if awaits(collector.version):
            wait_until(lambda: collector.version in [each.version for each in collector.evaluations])
    return batches, [replace(each, time_s=0.0) for each in collector.evaluations]


@pytest.fixture
def expected() -> Any:
    """The batches without evaluation, and the evaluations of a collector in this process."""
    with Collector("CartPole-v1", policy := untrained(), **OPTIONS) as collector:
        batches, _ = trained(collector, policy)
    with Collector("CartPole-v1", policy := untrained(), evaluation=EVERY_3, **OPTIONS) as collector:
        return batches, trained(collector, policy)[1]


def same(batches: list[Any], others: list[Any]) -> bool:
    return len(batches) == len(others) and all((one == other).all() for one, other in zip(batches, others, strict=True))


def test_evaluation_in_this_process_changes_no_batch(expected: Any) -> None:
    batches, evaluations = expected
    with Collector("CartPole-v1", policy := untrained(), evaluation=EVERY_3, **OPTIONS) as collector:
        assert same(trained(collector, policy)[0], batches)
    assert [(each.version, each.episodes) for each in evaluations] == [(3, 6), (6, 6), (9, 6)]
    assert len({each.mean_return for each in evaluations}) > 1  # each on weights of its own


class Counting(nn.Module):
    """Counts its calls in a buffer, and puts the count into the batch."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        count = len(observation)
        return {"action": torch.randint(2, (count,)), "calls": self.calls.expand(count).clone()}


class Gambling(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Draws its rewards from the global generators."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = self.env.step(action)
        return observation, random.random() + np.random.random() + float(torch.rand(())), *rest


class Noisy(nn.Module):
    """Samples its action, unless `quiet` and asked not to explore."""

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self.weight, self.quiet = nn.Parameter(torch.zeros(1)), quiet

    def forward(self, observation: Tensor) -> Tensor:
        spread = 0.0 if self.quiet and exploration() is not Exploration.RANDOM else 0.1
        return self.weight.detach() + spread * torch.randn(len(observation), 1)


class Moded(nn.Linear):
    """Falls to the left in `eval()` mode, and balances else: episodes of 9 or 10 frames, or many more."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def forward(self, observation: Tensor) -> Tensor:
        return always_0(observation) if not self.training else (observation[:, 2] + observation[:, 3] > 0).long()


@pytest.mark.parametrize("workers", [0, 1])
def test_evaluations_act_in_eval_mode(processes: CollectInProcesses, workers: int) -> None:
    make = processes if workers else Collector
    collector: Any = make(
        "CartPole-v1", policy := Moded(), workers=workers, evaluation=EVERY_3 | {"every": 1}, **OPTIONS
    )
    next(collector)
    wait_until(lambda: bool(collector.evaluations))
    collector.shutdown()
    assert policy.training
    assert collector.evaluations[0].mean_return < 11


@pytest.mark.parametrize(
    ("quiet", "how", "warned"),
    [(False, "deterministic", True), (True, "deterministic", False), (True, "mean", False), (False, "random", False)],
)
def test_an_evaluated_policy_that_explores_is_a_warning(
    caplog: pytest.LogCaptureFixture, quiet: bool, how: str, warned: bool
) -> None:
    evaluation: dict[str, object] = {"every": 1, "episodes": 1, "exploration": how}
    Collector("Pendulum-v1", Noisy(quiet), num_envs=2, frames_per_batch=8, evaluation=evaluation).shutdown()
    assert ("two actions for the same observation" in caplog.text) is warned


def test_evaluation_in_this_process_disturbs_neither_the_policy_nor_global_generators() -> None:
    def gather(evaluation: Any) -> tuple[list[Any], list[float]]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        env = lambda: Gambling(gymnasium.make("CartPole-v1"))  # noqa: E731
        with Collector(env, Counting(), num_envs=2, frames_per_batch=16, evaluation=evaluation) as collector:
            batches = [next(collector) for _ in range(4)]
            return batches, [each.mean_return for each in collector.evaluations]

    batches, returns = gather({"every": 1, "episodes": 3})
    assert same(batches, gather(None)[0])
    assert len(returns) == 4
    assert len(set(returns)) == 1  # the same weights, the same episodes


def factory(observations: Any, actions: Any) -> ActorCritic:
    return ActorCritic(observations, actions)


@pytest.mark.parametrize(
    ("workers", "keywords"),
    [(1, {}), (2, {}), (1, {"policy_factory": factory})],
    ids=["one", "two taking turns", "policies of a factory"],
)
def test_in_processes_the_returns_are_the_same_and_evaluation_changes_no_batch(
    processes: CollectInProcesses, expected: Any, workers: int, keywords: dict[str, Any]
) -> None:
    policy, evaluation = untrained(), EVERY_3 | {"workers": workers}
    collector = processes("CartPole-v1", policy, workers=1, evaluation=evaluation, **keywords, **OPTIONS)
    batches, evaluations = trained(collector, policy, awaits=lambda version: version in (3, 6))
    assert same(batches, expected[0])
    assert evaluations[:2] == expected[1][:2]


def test_a_policy_that_a_factory_makes_acts_and_is_evaluated_on_the_learners_weights(expected: Any) -> None:
    with Collector("CartPole-v1", policy := untrained(), policy_factory=factory, evaluation=EVERY_3, **OPTIONS) as here:
        batches, evaluations = trained(here, policy)
    assert same(batches, expected[0])
    assert evaluations == expected[1]


class Raising(nn.Module):
    """Fails where it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, observation: Tensor) -> Tensor:
        if exploration() is Exploration.DETERMINISTIC:
            raise ValueError("no such level")
        return torch.zeros(len(observation), dtype=torch.int64)


def test_an_evaluation_that_fails_for_good_is_reported_and_training_goes_on(
    processes: CollectInProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    collector = processes("CartPole-v1", Raising(), evaluation={"every": 1}, num_envs=2, frames_per_batch=8)

    def reported() -> bool:
        next(collector)
        return "an evaluation worker gave up" in caplog.text and "no such level" in caplog.text

    with caplog.at_level(logging.WARNING):
        wait_until(reported, 60)
    assert collector.evaluations == ()
    next(collector)


def test_in_this_process_an_error_of_an_evaluation_is_raised() -> None:
    with Collector("CartPole-v1", Raising(), evaluation={"every": 2}, num_envs=2, frames_per_batch=8) as collector:
        next(collector)
        with pytest.raises(Exception, match="no such level"):
            next(collector)


def test_an_evaluation_worker_that_is_killed_starts_again_with_its_version(
    processes: CollectInProcesses, started: Callable[..., list[Any]]
) -> None:
    collector = processes("CartPole-v1", untrained(), evaluation={"every": 2, "episodes": 4}, **OPTIONS)
    next(collector)
    evaluator, *others = started()  # evaluation workers are started first
    evaluator.kill()
    next(collector)
    assert collector.version == 2
    wait_until(lambda: [each.version for each in collector.evaluations] == [2])
    assert set(started()) > {*others}
    assert evaluator not in started()
    next(collector)


def test_shutdown_ends_evaluation_workers(processes: CollectInProcesses, started: Callable[..., list[Any]]) -> None:
    collector = processes("CartPole-v1", untrained(), evaluation={"every": 1, "workers": 2}, **OPTIONS)
    next(collector)
    assert len(started()) == 4
    collector.shutdown()
    assert started() == []


def test_the_numbers_are_those_of_the_episodes() -> None:
    with Collector("CartPole-v1", untrained(), evaluation={"every": 1, "episodes": 5}, **OPTIONS) as collector:
        next(collector)
        (found,) = collector.evaluations
    assert isinstance(found, Evaluation)
    assert found.min_return <= found.mean_return <= found.max_return
    assert found.mean_length == found.mean_return  # a frame of CartPole is worth 1
    assert (found.episodes, found.std_return > 0, found.time_s > 0) == (5, True, True)


VECTOR = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")


@pytest.mark.parametrize(
    ("evaluation", "keywords", "message"),
    [
        ({"every": "often"}, {}, "evaluation.every: expected a whole number, got 'often'"),
        ({}, {}, "evaluation.every: missing; write e.g. `every=10`"),
        ({"every": 1, "episode": 3}, {}, "evaluation.episode: unknown field `episode`; did you mean `episodes`?"),
        ({"every": 1, "exploration": "Modes"}, {}, "evaluation.exploration: got 'Modes'; write 'mode'"),
        (3, {}, "evaluation: expected a mapping, got 3"),
        ({"every": 1, "workers": 2}, {}, "`evaluation`: its `workers` are processes, and this collector has none"),
        ({"every": 1, "workers": 0}, {"workers": 1}, "evaluation.workers: must be at least 1, got 0"),
        ({"every": 1}, {"policy": None}, "needs a policy with weights"),
        ({"every": 1}, {"policy": always_0}, "needs a policy with weights"),
        ({"every": 1}, {"env": VECTOR}, "needs environments of its own"),
    ],
)
def test_a_wrong_value_is_named(evaluation: Any, keywords: dict[str, Any], message: str) -> None:
    valid: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 2, "frames_per_batch": 8}
    with pytest.raises(JobInvalid) as raised:
        Collector(**valid | {"evaluation": evaluation} | keywords)
    assert message in str(raised.value)
