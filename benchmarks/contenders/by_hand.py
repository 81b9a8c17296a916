"""The shortest loops by hand: preallocated memory, no collector, no trajectory ids, no checks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import rollfleet
from work import Array, Plain, PlainNumpy, Running, Work, make

Step = tuple[Any, Any, Any, Any]


class Stepped(Protocol):
    """Environments that are stepped together."""

    def reset(self) -> Array: ...  # noqa: D102
    def step(self, actions: Array) -> Step: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class InAList:
    """Environments in a list."""

    def __init__(self, env: str, num_envs: int) -> None:
        """Build the environments."""
        self.envs = [make(env) for _ in range(num_envs)]

    def reset(self) -> Array:
        """See `Stepped`."""
        self.now = np.stack([env.reset(seed=i)[0] for i, env in enumerate(self.envs)])
        self.flags = np.zeros((3, len(self.envs)), np.float32)
        return self.now

    def step(self, actions: Array) -> Step:
        """Step one after the other; reset an ended one at once."""
        reward, terminated, truncated = self.flags
        for i, env in enumerate(self.envs):
            self.now[i], reward[i], terminated[i], truncated[i], _ = env.step(actions[i])
            if terminated[i] or truncated[i]:
                self.now[i], _ = env.reset()
        return self.now, reward, terminated, truncated

    def close(self) -> None:
        """See `Stepped`."""
        for env in self.envs:
            env.close()


class Vector:
    """A vector environment of Gymnasium or EnvPool."""

    def __init__(self, env: Any) -> None:
        """Wrap a built environment."""
        self.env = env

    def reset(self) -> Array:
        """See `Stepped`."""
        return self.env.reset()[0]  # type: ignore[no-any-return]

    def step(self, actions: Array) -> Step:
        """See `Stepped`."""
        return self.env.step(actions)[:4]  # type: ignore[no-any-return]

    def close(self) -> None:
        """See `Stepped`."""
        self.env.close()


class Loop:
    """A loop that collects into the same memory, `[T, envs, ...]`."""

    def __init__(self, work: Work, envs: Stepped, act: Callable[[Array], tuple[Array, ...]]) -> None:
        """Allocate the memory."""
        self.envs, self.act = envs, act
        self.now = envs.reset()
        lead = (work.steps, work.num_envs)
        self.observation = np.zeros((*lead, *self.now.shape[1:]), self.now.dtype)
        self.outputs = [np.zeros((*lead, *out.shape[1:]), out.dtype) for out in act(self.now)]
        self.flags = [np.zeros(lead, dtype) for dtype in (np.float32, np.bool_, np.bool_)]

    def batch(self) -> tuple[Array, int]:
        """Collect one batch."""
        for t in range(len(self.observation)):
            out = self.act(self.now)
            self.observation[t] = self.now
            for column, value in zip(self.outputs, out, strict=True):
                column[t] = value
            self.now, *flags = self.envs.step(out[0])
            for column, value in zip(self.flags, flags, strict=True):
                column[t] = value
        return self.observation, self.observation.shape[0] * self.observation.shape[1]


def in_torch(policy: Plain) -> Callable[[Array], tuple[Array, ...]]:
    """Wrap a torch policy for arrays."""

    def act(observation: Array) -> tuple[Array, ...]:
        with torch.inference_mode():
            return tuple(value.numpy() for value in policy.act(torch.from_numpy(observation)))

    return act


@contextmanager
def _loop(work: Work, envs: Stepped, act: Callable[[Array], tuple[Array, ...]]) -> Iterator[Running]:
    yield Running(next_batch=Loop(work, envs, act).batch)
    envs.close()


def list_torch(work: Work) -> Any:
    """A list of environments, plain torch."""
    return _loop(work, InAList(work.env, work.num_envs), in_torch(Plain(work)))


def list_numpy(work: Work) -> Any:
    """A list of environments, plain numpy."""
    return _loop(work, InAList(work.env, work.num_envs), PlainNumpy(Plain(work)).act)


def vector_torch(work: Work) -> Any:
    """Gymnasium's SyncVectorEnv, plain torch."""
    return _loop(work, Vector(SyncVectorEnv([lambda: make(work.env)] * work.num_envs)), in_torch(Plain(work)))


def async_torch(work: Work) -> Any:
    """Gymnasium's AsyncVectorEnv, plain torch."""
    return _loop(work, Vector(AsyncVectorEnv([partial(make, work.env)] * work.num_envs)), in_torch(Plain(work)))


def make_vec_torch(work: Work) -> Any:
    """Rollfleet's make_vec of two servers, plain torch."""
    servers = rollfleet.make_vec(partial(make, work.env), num_envs=work.num_envs, workers=2)
    return _loop(work, Vector(servers), in_torch(Plain(work)))


def envpool_torch(work: Work) -> Any:
    """EnvPool, plain torch."""
    return _loop(work, _envpool(work), in_torch(Plain(work)))


def envpool_numpy(work: Work) -> Any:
    """EnvPool, plain numpy."""
    return _loop(work, _envpool(work), PlainNumpy(Plain(work)).act)


def _envpool(work: Work) -> Vector:
    import envpool

    return Vector(envpool.make_gymnasium(work.env, num_envs=work.num_envs))
