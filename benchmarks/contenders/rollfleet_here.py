"""Rollfleet in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium

import env_hosts
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


@contextmanager
def servers(work: Work) -> Iterator[Running]:
    """A collector over two servers: central inference."""
    with _over(work, workers=2) as running:
        yield running


@contextmanager
def hosts(work: Work) -> Iterator[Running]:
    """The same over the network: two programs `rollfleet env-server`."""
    with env_hosts.hosts(2) as addresses, _over(work, **addresses) as running:
        yield running


@contextmanager
def _over(work: Work, **servers: Any) -> Iterator[Running]:
    everyone = max(work.workers, 1)  # of as many workers
    envs = rollfleet.make_vec(partial(make, work.env), num_envs=everyone * work.num_envs, **servers)
    with rollfleet.Collector(envs, built_in(work), frames_per_batch=everyone * work.frames) as collector:
        yield Running(next_batch=lambda: (next(collector), everyone * work.frames))


# The contenders. To Rollfleet `Plain` is opaque.
plain_torch = partial(_collector, make_policy=Plain)
mlp = partial(_collector, make_policy=built_in)
envpool_torch = partial(_collector, make_policy=Plain, backend="envpool")
envpool_mlp = partial(_collector, make_policy=built_in, backend="envpool")
