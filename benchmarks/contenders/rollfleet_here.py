"""Rollfleet in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium

import rollfleet
from work import Plain, Running, Work, make


def plain_torch(work: Work) -> Any:
    """A policy that is opaque to Rollfleet."""
    return _collector(work, Plain(work))


def mlp(work: Work) -> Any:
    """The built-in policy; it always has a critic."""
    return _collector(work, built_in(work))


def envpool_torch(work: Work) -> Any:
    """EnvPool steps the environments."""
    return _collector(work, Plain(work), backend="envpool")


def envpool_mlp(work: Work) -> Any:
    """EnvPool steps the environments, the built-in policy acts."""
    return _collector(work, built_in(work), backend="envpool")


def built_in(work: Work) -> rollfleet.ActorCritic:
    """The policy `mlp`."""
    env: gymnasium.Env[Any, Any] = make(work.env)
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space, hidden=work.hidden)
    env.close()
    return policy


@contextmanager
def _collector(work: Work, policy: Any, backend: str = "gymnasium") -> Iterator[Running]:
    frames: int = work.frames
    with rollfleet.Collector(
        work.env, policy, num_envs=work.num_envs, frames_per_batch=frames, backend=backend
    ) as collector:
        yield Running(next_batch=lambda: (next(collector), frames))
