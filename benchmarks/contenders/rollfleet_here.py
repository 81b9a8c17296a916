"""Rollfleet in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium

import rollfleet
from work import Plain, Running, Work, make


def built_in(work: Work) -> rollfleet.ActorCritic:
    """The policy `mlp`; it always has a critic."""
    env: gymnasium.Env[Any, Any] = make(work.env)
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space, hidden=work.hidden)
    env.close()
    return policy


@contextmanager
def _collector(work: Work, make_policy: Callable[[Work], Any], backend: str = "gymnasium") -> Iterator[Running]:
    frames: int = work.frames
    with rollfleet.Collector(
        work.env, make_policy(work), num_envs=work.num_envs, frames_per_batch=frames, backend=backend
    ) as collector:
        yield Running(next_batch=lambda: (next(collector), frames))


# The contenders. To Rollfleet `Plain` is opaque.
plain_torch = partial(_collector, make_policy=Plain)
mlp = partial(_collector, make_policy=built_in)
envpool_torch = partial(_collector, make_policy=Plain, backend="envpool")
envpool_mlp = partial(_collector, make_policy=built_in, backend="envpool")
