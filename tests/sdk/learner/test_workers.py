"""`collector.call`: methods of workers' environments and policies, in every place."""

import os
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.sdk.counting import always_0
from tests.sdk.places import Collect
from tests.sdk.rollouts import Observing
from tests.waiting import wait_until
from torch import Tensor, nn

import rollfleet
from rollfleet.errors import CallFailed, JobInvalid
from rollfleet_api.messages import WorkerState


class Levelled(Observing):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    level = 0

    def seen(self) -> Any:
        return np.array([self.level], np.float32)

    def set_level(self, level: int, *, twice: bool = False) -> int:
        before, self.level = self.level, level * (1 + twice)
        return before

    def picture(self) -> Any:
        return np.full((64, 64, 3), self.level, np.uint8)

    def repeated(self, text: str) -> str:
        return 2 * text

    def end(self) -> None:
        os._exit(1)

    def broken(self) -> None:
        raise ArithmeticError("no such level")


class Described(nn.Module):
    """A policy with a method, and an attribute that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = 0.5
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, observation: Tensor) -> Tensor:
        return always_0(observation)

    def set_noise(self, noise: float) -> dict[str, Any]:
        self.noise = noise
        return {"weight": self.weight.detach(), "names": ("a", None)}


def levels(batch: Any) -> list[float]:
    return [float(row) for row in batch["next", "observation"][:, -1, 0]]


def test_methods_of_environments_are_called_between_batches(collect: Collect) -> None:
    workers = range(collect.workers)
    collector = collect(Levelled, num_envs=2, frames_per_batch=8 * collect.workers)
    assert collector.call(None, "env.set_level", 3) == {worker: [0, 0] for worker in workers}
    assert levels(next(collector)) == [3, 3] * collect.workers
    assert collector.call(0, "env.set_level", 2, twice=True) == {0: [3, 3]}
    assert levels(next(collector)) == [4, 4] + [3, 3] * (collect.workers - 1)
    with collector.pause():
        pictures = collector.call([0], "env.picture")[0]
    assert [picture.shape for picture in pictures] == [(64, 64, 3)] * 2
    assert (pictures[0] == 4).all()
    assert collector.call(None, "env.level")[0] == [4, 4]  # an attribute
    assert collector.call(0, "env.repeated", "x" * 60_000) == {0: ["x" * 120_000] * 2}


def test_methods_of_policies_are_called(collect: Collect) -> None:
    collector = collect(Levelled, Described(), num_envs=2, frames_per_batch=8 * collect.workers)
    next(collector)
    for result in collector.call(None, "policy.set_noise", 0.25).values():
        assert result["weight"].tolist() == [1.0, 1.0]
        assert result["names"] == ["a", None]
    assert set(collector.call(None, "policy.noise").values()) == {0.25}


def test_in_mode_async_workers_answer_between_two_batches(apart: Collect) -> None:
    collector = apart(Levelled, num_envs=2, frames_per_batch=8, mode="async")
    next(collector)
    assert collector.call(None, "env.set_level", 7) == {0: [0, 0], 1: [0, 0]}
    while levels(next(collector)) != [7, 7]:  # batches from before are on their way
        pass


def test_in_mode_async_a_method_may_be_called_before_a_policy_was_sent(apart: Collect) -> None:
    collector = apart(Levelled, Described(), num_envs=2, frames_per_batch=8, mode="async", weights_interval=0)
    wait_until(lambda: len(collector.stats().workers) == 2)
    with collector.pause():
        pass  # workers wait for weights from now on
    states = (WorkerState.WAITING_FOR_WEIGHTS,) * 2
    wait_until(lambda: tuple(each.state for each in collector.stats().workers.values()) == states)
    assert collector.call(None, "env.set_level", 7) == {0: [0, 0], 1: [0, 0]}
    assert levels(next(collector)) == [7, 7]


def test_a_method_may_be_called_while_a_buffer_is_filled(collect: Collect) -> None:
    buffer = rollfleet.ReplayBuffer(1000)
    collector = collect(Levelled, num_envs=2, frames_per_batch=8 * collect.workers, replay_buffer=buffer)
    collector.start()
    assert collector.call(0, "env.set_level", 1) == {0: [0, 0]}


def test_a_worker_that_is_named_twice_is_called_once(here: Collect) -> None:
    collector = here(Levelled, num_envs=1, frames_per_batch=8)
    assert collector.call([0, 0], "env.set_level", 3) == {0: [0]}


def test_a_call_in_which_a_process_ends_is_not_made_again() -> None:
    again = rollfleet.Processes(max_restarts_per_worker=1)
    with rollfleet.Collector(Levelled, frames_per_batch=8, workers=1, processes=again) as collector:
        next(collector)
        with pytest.raises(CallFailed, match=r"^worker 0: env\.end: worker 0 was started again before it answered"):
            collector.call(0, "env.end")
        assert len(next(collector)) == 1


@pytest.mark.parametrize("method", ["env.broken", "env.missing", "policy.missing"])
def test_an_error_of_a_method_is_named_and_workers_go_on(collect: Collect, method: str) -> None:
    collector = collect(Levelled, Described(), num_envs=2, frames_per_batch=8 * collect.workers)
    with pytest.raises(
        CallFailed, match=rf"^worker 0: {method}: (ArithmeticError: no such level|AttributeError: )"
    ) as at:
        collector.call(None, method)
    assert at.value.worker == 0
    assert "Traceback" in at.value.error
    assert len(levels(next(collector))) == 2 * collect.workers


def test_environments_in_processes_of_their_own_are_called(here: Collect) -> None:
    collector = here(Levelled, num_envs=3, frames_per_batch=9, vectorization="async", env_processes=2)
    assert collector.call(None, "env.set_level", 3) == {0: [0, 0, 0]}
    with pytest.raises(CallFailed, match="no such level"):
        collector.call(None, "env.broken")
    assert levels(next(collector)) == [3, 3, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, "set_level", 3), r"method: expected 'env\.<name>' or 'policy\.<name>', got 'set_level'"),
        ((None, "env.set_level", object()), "the arguments of 'env.set_level' cannot be sent: object is no number"),
        ((None, "env.set_level", "x" * 300_000), "the arguments of 'env.set_level' cannot be sent: "),
        ((5, "env.set_level", 3), "there is no worker 5; the workers are"),
    ],
)
def test_a_wrong_argument_is_one_error(here: Collect, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(JobInvalid, match=f"^{message}"):
        here(Levelled, num_envs=1, frames_per_batch=8).call(*arguments)


def test_a_result_that_cannot_be_sent_is_an_error(here: Collect) -> None:
    collector = here(Levelled, num_envs=1, frames_per_batch=8)
    with pytest.raises(CallFailed, match=r"Generator is no number, text"):
        collector.call(None, "env.np_random")


def test_a_worker_that_joins_after_a_call_is_named_by_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "joined" in record.getMessage()]

    with rollfleet.Collector(Levelled, frames_per_batch=16, workers=1) as collector:
        collector.call(None, "env.set_level", 3)
        next(collector)
        collector.call(None, "env.level")
        assert warnings() == []
        collector.add_workers(1)
        wait_until(lambda: next(collector) is not None and len(warnings()) > 0)
        collector.call(None, "env.set_level", 3)
        next(collector)
    (found,) = warnings()
    assert found.startswith(
        "worker 1 (incarnation 0) joined after collector.call: repeat 'env.set_level', 'env.level' on it"
    )
