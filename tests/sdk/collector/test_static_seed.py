"""`set_seed(seed, static_seed=True)`: one seed for all workers and environments."""

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

if TYPE_CHECKING:
    from tests.sdk.collector.places import Collect

SMALL: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 32}


def sampler(observation: Tensor) -> Tensor:
    return torch.randint(2, (len(observation),))


class ShowsSeed(gymnasium.Env[Any, Any]):
    """Observes the seed of its last reset that had one."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    _last: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._last = self._last if seed is None else seed
        return np.array([self._last]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([self._last]), 0.0, False, False, {}


def seeds_of(batch: TensorDict) -> Tensor:
    seeds: Tensor = batch["observation"][:, 0, 0]
    return seeds


def test_a_static_seed_is_the_seed_of_all_workers_and_environments(collect: "Collect") -> None:
    collector = collect(ShowsSeed, sampler, **SMALL)
    first = next(collector)
    assert len(seeds_of(first).unique()) == len(first)
    assert collector.set_seed(7, static_seed=True) == 7
    batch = next(collector)
    assert (seeds_of(batch) == 7).all()
    of_worker = batch["action"].reshape(collect.workers, -1)
    if not collect.alone:  # workers that are threads share torch's generators
        assert (of_worker == of_worker[0]).all()
    assert collector.set_seed(2**40 + 3, static_seed=True) == 2**40 + 3
    assert (seeds_of(next(collector)) == 3).all()  # environments take seeds below 2**32
    collector.set_seed(7)
    assert len(seeds_of(next(collector)).unique()) == len(first)


def test_it_is_the_seed_of_environments_in_processes(here: "Collect") -> None:
    collector = here(ShowsSeed, sampler, vectorization="async", **SMALL)
    collector.set_seed(7, static_seed=True)
    assert (seeds_of(next(collector)) == 7).all()


def test_a_restored_run_keeps_a_static_seed(collect: "Collect") -> None:
    first = collect(ShowsSeed, sampler, **SMALL)
    first.set_seed(7, static_seed=True)
    next(first)
    state = first.state_dict()
    again = collect(ShowsSeed, sampler, **SMALL)
    again.load_state_dict(state)
    assert (seeds_of(next(again)) == 7).all()
