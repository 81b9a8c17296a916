"""Single environments: made from an id or by a function, with wrappers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pickle import PicklingError
from typing import Any, TypeAlias

import gymnasium

from rollfleet.envs.space_tree import array_leaves
from rollfleet.errors import EnvironmentInvalid, JobInvalid
from rollfleet.system.entrypoints import load
from rollfleet_api.wording import nearest

Env: TypeAlias = gymnasium.Env[Any, Any]


def registered(env_id: str, kwargs: Mapping[str, object]) -> Callable[[], Env]:
    """Return a function that makes an environment of Gymnasium's registry."""
    return partial(gymnasium.make, env_id, **{"disable_env_checker": True, **kwargs})  # type: ignore[arg-type]


def named(entrypoint: str, **kwargs: object) -> Env:
    """Make an environment by the callable that `entrypoint` names."""
    return load(entrypoint)(**kwargs)  # type: ignore[return-value]


def made(build: Callable[[], Env], wrappers: Sequence[tuple[Callable[..., object], Mapping[str, object]]]) -> Env:
    """Make an environment, and put wrappers around it, the innermost first."""
    env = build()
    for wrapper, kwargs in wrappers:
        wrapped = wrapper(env, **kwargs)
        if not isinstance(wrapped, gymnasium.Env):
            raise TypeError(f"wrapper {wrapper} returned a {type(wrapped).__name__}, not a gymnasium.Env")
        env = wrapped
    return env


def not_built(source: str, exc: Exception, env_id: str | None, kwargs: Mapping[str, object]) -> EnvironmentInvalid:
    """Return the error of an environment that could not be made: its cause, and what to do."""
    if env_id is not None and isinstance(exc, gymnasium.error.UnregisteredEnv):
        near = nearest(env_id, gymnasium.registry)
        hint = f"did you mean {near!r}?" if near else "write 'module:Name-v0' to import the module that registers it"
        return EnvironmentInvalid(f"{source}: {exc} ({hint})")
    hint = "Check its keyword arguments and wrappers, and that its dependencies are installed on the worker"
    if isinstance(exc, PicklingError):  # a worker's `__main__` is not the user's program
        hint = "If it starts a process, put the function that runs there into a module that workers can import"
    if isinstance(exc, OSError):
        hint = "The system refuses it: compare `ulimit -n`, and whether /dev/shm is writable and large enough"
    if "daemonic" in str(exc):  # multiprocessing's AssertionError
        hint = "Make it in a process that is not daemonic (a pool's are), or write vectorization: Sync"
    return EnvironmentInvalid(
        f"{source} could not be built with kwargs {dict(kwargs)}: {type(exc).__name__}: {exc}. {hint}"
    )


def checked(build: Callable[[], Env], source: str, env_id: str | None, kwargs: Mapping[str, object]) -> Env:
    """Return an environment, which shows that its spaces are supported."""
    try:
        first = build()
    except JobInvalid:
        raise
    except Exception as exc:
        raise not_built(source, exc, env_id, kwargs) from exc
    if not isinstance(first, gymnasium.Env):
        raise EnvironmentInvalid(f"{source} returned a {type(first).__name__}; return a gymnasium.Env")
    try:
        array_leaves(first.observation_space, "observation", source)
        array_leaves(first.action_space, "action", source)
    except EnvironmentInvalid:
        first.close()
        raise
    return first
