"""Gymnasium vector environments from what a job says.

Environments that are built here do not reset by themselves (`AutoresetMode.DISABLED`): the rollout resets those that
ended, so that no step is spent on it and the last observation of an episode is never overwritten.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
from gymnasium.vector import AutoresetMode

from rollfleet.envs.env_pool import EnvPoolVectorEnv
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.spaces import supported
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.envs.tensor_env import TensorEnv, TensorVectorEnv
from rollfleet.errors import EnvironmentFailed, EnvironmentInvalid
from rollfleet.system.entrypoints import load
from rollfleet_api.job import Backend, Vectorization

if TYPE_CHECKING:
    import torch

    from rollfleet_api.job import EnvSpec, WrapperSpec

Env: TypeAlias = gymnasium.Env[Any, Any]
VectorEnv: TypeAlias = gymnasium.vector.VectorEnv[Any, Any, Any]


def make_env(
    spec: "EnvSpec",
    factory: Callable[..., object] | None = None,
    *,
    device: "torch.device | None" = None,
    no_cuda_sync: bool = False,
) -> VectorEnv:
    """Build the environments of one worker.

    Args:
        spec: What a job says of them.
        factory: What is called where the job names an entrypoint; None: what that names.
        device: Where they are, if they make tensors; actions go there. None: they make arrays.
        no_cuda_sync: Do not wait until actions have arrived there.

    Raises:
        EnvironmentInvalid: They could not be built, or have a space that is not supported. Names the id or
            entrypoint, what went wrong, and what to write.
    """
    source = _source(spec, factory)
    if spec.backend is Backend.ENVPOOL:
        env: VectorEnv = EnvPoolVectorEnv(spec.id or "", spec.num_envs, spec.kwargs)
    elif spec.vectorization is Vectorization.NATIVE and spec.id is not None:
        env = _native(spec.id, spec, source)
    else:
        on_device = {} if device is None else {"device": device, "no_cuda_sync": no_cuda_sync}
        env = _vectorized(spec, source, factory, on_device)
    if device is not None and not isinstance(env, SerialVectorEnv | ProcessVectorEnv):
        env = TensorVectorEnv(env, device, no_cuda_sync)
    try:
        check(env, source)
    except EnvironmentInvalid:
        env.close()
        raise
    return env


def check(env: VectorEnv, source: str) -> AutoresetMode:
    """The autoreset mode of an environment that can be used.

    Raises:
        EnvironmentInvalid: A space is not supported, or the environment does not tell its mode.
    """
    supported(env.single_observation_space, "observation", source)
    supported(env.single_action_space, "action", source)
    try:
        return AutoresetMode(env.metadata["autoreset_mode"])
    except (KeyError, ValueError) as exc:
        raise EnvironmentInvalid(
            f"{source}: this vector environment does not tell how it resets; write "
            'metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP} (or SAME_STEP, DISABLED) in its class'
        ) from exc


def _source(spec: "EnvSpec", factory: Callable[..., object] | None) -> str:
    if factory is not None:
        return f"environment factory {getattr(factory, '__qualname__', factory)!r}"
    return f"environment {spec.id!r}" if spec.id is not None else f"environment entrypoint {spec.entrypoint!r}"


def _native(env_id: str, spec: "EnvSpec", source: str) -> VectorEnv:
    mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
    kwargs: dict[str, Any] = dict(spec.kwargs)
    try:
        return gymnasium.make_vec(env_id, num_envs=spec.num_envs, vectorization_mode=mode, **kwargs)
    except Exception as exc:
        if "vector entry point" in str(exc):
            raise EnvironmentInvalid(
                f"{source} has no native vector form; write vectorization: Sync (or Async)"
            ) from exc
        raise _failed(source, exc, spec) from exc


def _vectorized(
    spec: "EnvSpec", source: str, factory: Callable[..., object] | None, on_device: Mapping[str, object]
) -> VectorEnv:
    if spec.id is not None:
        build: Callable[[], Env] = partial(_registered, spec.id, spec.kwargs)
        first: Env | VectorEnv | None = None
    else:
        build, first = _from_factory(spec, source, factory or _entrypoint(spec, source))
        if isinstance(first, gymnasium.vector.VectorEnv):
            return _ready(first, spec, source)
    wrappers: list[tuple[Callable[..., object], Mapping[str, object]]] = [
        (_loaded(wrapper, source), wrapper.kwargs) for wrapper in spec.wrappers
    ]
    if on_device:
        wrappers.append((TensorEnv, on_device))
    single = partial(_single, build, wrappers)
    # What is built already is not wasted: it is the first, or tells the spaces.
    here = single
    if isinstance(first, gymnasium.Env):
        given: Env = first
        here = partial(_single, lambda: given, wrappers)
    try:
        if spec.vectorization is Vectorization.ASYNC:
            return ProcessVectorEnv([single] * spec.num_envs, spec.processes or spec.num_envs, sample=here)
        return SerialVectorEnv([here, *[single] * (spec.num_envs - 1)])
    except EnvironmentFailed:
        raise
    except Exception as exc:
        raise _failed(source, exc, spec) from exc


def _registered(env_id: str, kwargs: Mapping[str, object]) -> Env:
    return gymnasium.make(env_id, disable_env_checker=True, **dict(kwargs))  # type: ignore[arg-type]


def _single(build: Callable[[], Env], wrappers: Sequence[tuple[Callable[..., object], Mapping[str, object]]]) -> Env:
    env = build()
    for wrapper, kwargs in wrappers:
        wrapped = wrapper(env, **kwargs)
        if not isinstance(wrapped, gymnasium.Env):
            raise TypeError(f"wrapper {wrapper} returned a {type(wrapped).__name__}, not a gymnasium.Env")
        env = wrapped
    return env


def _entrypoint(spec: "EnvSpec", source: str) -> Callable[..., object]:
    try:
        return load(spec.entrypoint or "")
    except ValueError as exc:
        raise EnvironmentInvalid(f"{source}: {exc}") from exc


def _from_factory(
    spec: "EnvSpec", source: str, factory: Callable[..., object]
) -> tuple[Callable[[], Env], Env | VectorEnv]:
    """The factory, and the first thing it made: only then is it known whether it makes single or vector ones."""
    kwargs: dict[str, object] = dict(spec.kwargs)
    if spec.vectorization is Vectorization.NATIVE:
        kwargs.setdefault("num_envs", spec.num_envs)
    build = partial(factory, **kwargs)
    try:
        first = build()
    except Exception as exc:
        raise _failed(source, exc, spec) from exc
    if not isinstance(first, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise EnvironmentInvalid(
            f"{source} returned a {type(first).__name__}; return a gymnasium.Env, or a gymnasium.vector.VectorEnv "
            f"with num_envs={spec.num_envs}"
        )
    if spec.vectorization is Vectorization.NATIVE and not isinstance(first, gymnasium.vector.VectorEnv):
        first.close()
        raise EnvironmentInvalid(
            f"{source} returned a single environment, but the job says vectorization: Native; return a "
            "gymnasium.vector.VectorEnv, or write vectorization: Sync"
        )
    return build, first  # type: ignore[return-value]


def _ready(env: VectorEnv, spec: "EnvSpec", source: str) -> VectorEnv:
    if env.num_envs != spec.num_envs:
        env.close()
        raise EnvironmentInvalid(
            f"{source} returned a VectorEnv of {env.num_envs} environments, but the job says {spec.num_envs}; "
            f"write numEnvs: {env.num_envs}, or give the number to the factory in env.kwargs"
        )
    if spec.wrappers:
        env.close()
        raise EnvironmentInvalid(
            f"{source} returned a VectorEnv, and wrappers are for single environments; apply them inside the factory"
        )
    return env


def _loaded(wrapper: "WrapperSpec", source: str) -> Callable[..., object]:
    try:
        return load(wrapper.entrypoint)
    except ValueError as exc:
        raise EnvironmentInvalid(f"{source}, wrapper: {exc}") from exc


def _failed(source: str, exc: Exception, spec: "EnvSpec") -> EnvironmentInvalid:
    if spec.id is not None and isinstance(exc, gymnasium.error.UnregisteredEnv):
        near = get_close_matches(spec.id, gymnasium.registry, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "write 'module:Name-v0' to import the module that registers it"
        return EnvironmentInvalid(f"{source}: {exc} ({hint})")
    return EnvironmentInvalid(
        f"{source} could not be built with kwargs {dict(spec.kwargs)}: {type(exc).__name__}: {exc}. "
        "Check env.kwargs and env.wrappers, and that what it needs is installed on the worker"
    )
