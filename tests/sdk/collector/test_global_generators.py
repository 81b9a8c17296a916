"""Environments that draw from the global generators of Python, NumPy and torch, in processes."""

import random
from itertools import islice
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

if TYPE_CHECKING:
    from tests.sdk.collector.places import Collect


class Drawing(gymnasium.Env[Any, Any]):
    """Observes one number of each global generator."""

    observation_space = Box(0, 1, (3,), np.float64)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._drawn(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._drawn(), 0.0, False, False, {}

    def _drawn(self) -> Any:
        return np.array([random.random(), np.random.rand(), float(torch.rand(()))])


def drawn(collector: Any) -> torch.Tensor:
    """Return the first observations of three batches, [environments, frames, 3]."""
    return torch.cat([batch["observation"].clone() for batch in islice(collector, 3)], 1)


@pytest.mark.parametrize("options", [{}, {"vectorization": "async"}], ids=["sync", "async"])
def test_no_two_environments_of_processes_draw_the_same_numbers(processes: "Collect", options: dict[str, Any]) -> None:
    seen = drawn(processes(Drawing, num_envs=2, frames_per_batch=32, seed=5, **options))
    for kind in range(3):
        assert len(seen[..., kind].unique()) == seen[..., kind].numel()


def test_no_two_environments_draw_the_same_numbers_in_processes_of_their_own(here: Any) -> None:
    seen = drawn(here(Drawing, num_envs=3, frames_per_batch=24, seed=5, vectorization="async"))
    for kind in range(3):
        assert len(seen[..., kind].unique()) == seen[..., kind].numel()


@pytest.mark.parametrize("options", [{}, {"vectorization": "async"}], ids=["sync", "async"])
def test_a_seed_gives_the_same_numbers_again(processes: "Collect", options: dict[str, Any]) -> None:
    one, same, other = (
        drawn(processes(Drawing, num_envs=2, frames_per_batch=32, seed=seed, **options)) for seed in (5, 5, 6)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    collector = processes(Drawing, num_envs=2, frames_per_batch=32, seed=6, **options)
    next(collector)
    collector.set_seed(5)
    assert torch.equal(drawn(collector), one)


def states() -> list[str]:
    return [str(state) for state in (random.getstate(), np.random.get_state(), torch.get_rng_state().tolist())]


def test_the_learners_own_generators_are_left_alone(here: Any) -> None:
    before = states()
    next(here("CartPole-v1", num_envs=2, frames_per_batch=32, seed=5))
    after = states()
    assert before == after
