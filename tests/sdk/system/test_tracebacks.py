"""Errors of users' code in workers: the text begins at their own frames."""

import re
import traceback
from typing import Any

import pytest
import torch
from torch import Tensor

from rollfleet import Collector, Processes
from rollfleet.errors import WorkerFailed
from rollfleet.system.tracebacks import formatted
from rollfleet.testing import CountingEnv


class Broken(CountingEnv):
    def step(self, action: Any) -> Any:
        raise ArithmeticError("the arm came off")


class Tired:
    """A policy that fails at its second call."""

    calls = 0

    def __call__(self, observation: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            raise ArithmeticError("the arm came off")
        return torch.zeros(len(observation), dtype=torch.int64)


@pytest.mark.parametrize("parts", [(Broken, None, "sync"), (Broken, None, "async"), (CountingEnv, Tired(), "sync")])
def test_an_error_of_users_code_in_a_worker_begins_at_its_frame(parts: Any) -> None:
    env, policy, vectorization = parts
    options: Any = {"vectorization": vectorization, "processes": Processes(start_method="fork")}
    with (
        Collector(env, policy, frames_per_batch=4, workers=1, **options) as collector,
        pytest.raises(WorkerFailed, match="ArithmeticError: the arm came off") as failed,
    ):
        next(collector)
    shown = re.findall(r'File "(.*?)"', str(failed.value))
    assert shown[0] == __file__
    assert not [each for each in shown if "/sdk/rollfleet/" in each]


def test_an_error_without_a_frame_of_users_code_is_whole() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.nn.Linear(2, 1)(torch.zeros(3))
    own = raised.value.__traceback__
    assert own is not None
    error = raised.value.with_traceback(own.tb_next)
    assert formatted(error) == "".join(traceback.format_exception(error))
    assert formatted(error).count("  File ") > 1
