"""The backend `Gymnasium`: registered environments, and those of an entrypoint or a factory."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import gymnasium

from rollfleet.envs.remote import RemoteServers
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.server_process import Launch, ServerProcess
from rollfleet.envs.single import Env, made, not_built, registered
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.envs.tensor_env import TensorEnv
from rollfleet.envs.torchrl_env import TorchRLEnv, build_torchrl, is_torchrl
from rollfleet.errors import ConnectionFailed, EnvironmentFailed, EnvironmentInvalid, JobInvalid
from rollfleet.system.entrypoints import load
from rollfleet_api.job import Backend, EnvSpec, Vectorization

VectorEnv: TypeAlias = gymnasium.vector.VectorEnv[Any, Any, Any]


def build_gymnasium(
    spec: EnvSpec, source: str, factory: Callable[..., object] | None, on_device: Mapping[str, object]
) -> VectorEnv:
    """Build environments in this thread, in processes, or in their native vector form. See `factory.Build`.

    Raises:
        EnvironmentInvalid: They could not be built.
        EnvironmentFailed: A process of theirs failed.
        ConnectionFailed: An environment server cannot be reached.
    """
    if spec.vectorization is Vectorization.NATIVE and spec.id is not None:
        return _native(spec.id, spec, source)
    return _vectorized(spec, source, factory, on_device)


def takes_seeds(env: object) -> bool:
    """Whether a vector takes a seed for each environment; `VectorEnv` itself promises a single number."""
    both = gymnasium.vector.SyncVectorEnv | gymnasium.vector.AsyncVectorEnv
    return isinstance(env, both) or bool(getattr(env, "takes_seeds", False))


def end_processes(env: gymnasium.vector.AsyncVectorEnv) -> None:
    """End the processes of Gymnasium's own vector in mid-step.

    Its `close` would wait for answers that may never come, or raise one of them.
    """
    for process in env.processes:
        process.terminate()
    for process, pipe in zip(env.processes, env.parent_pipes, strict=True):
        process.join()
        if pipe is not None:
            pipe.close()
    env.closed = True


def _native(env_id: str, spec: EnvSpec, source: str) -> VectorEnv:
    mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
    kwargs: dict[str, Any] = dict(spec.kwargs)
    try:
        return gymnasium.make_vec(env_id, num_envs=spec.num_envs, vectorization_mode=mode, **kwargs)
    except Exception as exc:
        if "vector entry point" in str(exc):
            raise EnvironmentInvalid(
                f"{source} has no native vector form; write vectorization: Sync (or Async)"
            ) from exc
        raise not_built(source, exc, spec.id, spec.kwargs) from exc


def _vectorized(
    spec: EnvSpec, source: str, factory: Callable[..., object] | None, on_device: Mapping[str, object]
) -> VectorEnv:
    if spec.id is not None:
        build = registered(spec.id, spec.kwargs)
        first: Env | VectorEnv | None = None
    else:
        build, first = _from_factory(spec, source, factory or _loaded(spec.entrypoint or "", source))
        if isinstance(first, gymnasium.vector.VectorEnv):
            return _ready(first, spec, source)
        if is_torchrl(first):
            return TorchRLEnv(build_torchrl(first, build, spec, source), on_device.get("device"))  # type: ignore[return-value, arg-type]
    wrappers: list[tuple[Callable[..., object], Mapping[str, object]]] = [
        (_loaded(wrapper.entrypoint, f"{source}, wrapper"), wrapper.kwargs) for wrapper in spec.wrappers
    ]
    if on_device:
        wrappers.append((TensorEnv, on_device))
    single = partial(made, build, wrappers)
    # An environment that is built already becomes the first one, or gives the spaces.
    here = single
    if isinstance(first, gymnasium.Env):
        given: Env = first
        here = partial(made, lambda: given, wrappers)
    try:
        if spec.vectorization is Vectorization.ASYNC:
            launch, servers = _servers(spec)
            return ProcessVectorEnv([single] * spec.num_envs, servers, sample=here, launch=launch)
        return SerialVectorEnv([here, *[single] * (spec.num_envs - 1)], again=single)
    except (EnvironmentFailed, ConnectionFailed):
        raise
    except Exception as exc:
        raise not_built(source, exc, spec.id, spec.kwargs) from exc


def _servers(spec: EnvSpec) -> tuple[Launch, int]:
    """Return what starts the servers of a worker's environments, and their number; without pods they are processes."""
    if spec.servers is None:
        return ServerProcess, spec.processes or spec.num_envs
    return RemoteServers.of_worker(os.environ, spec.servers.replicas) or ServerProcess, spec.servers.replicas


def _from_factory(
    spec: EnvSpec, source: str, factory: Callable[..., object]
) -> tuple[Callable[[], Env], Env | VectorEnv]:
    """Return the factory, and its first environment, which shows whether it makes single or vector ones."""
    kwargs: dict[str, object] = dict(spec.kwargs)
    if spec.vectorization is Vectorization.NATIVE:
        kwargs.setdefault("num_envs", spec.num_envs)
    build = partial(factory, **kwargs)
    try:
        first = build()
    except JobInvalid:
        raise
    except Exception as exc:
        raise not_built(source, exc, spec.id, spec.kwargs) from exc
    if is_torchrl(first):
        return build, first  # type: ignore[return-value]
    if spec.backend is Backend.TORCHRL:
        raise EnvironmentInvalid(
            f"{source} returned a {type(first).__name__}, but the job says backend: TorchRL; return an EnvBase, or "
            "remove `backend`"
        )
    if not isinstance(first, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise EnvironmentInvalid(
            f"{source} returned a {type(first).__name__}; return a gymnasium.Env, a gymnasium.vector.VectorEnv with "
            f"num_envs={spec.num_envs}, or an EnvBase of TorchRL"
        )
    if spec.vectorization is Vectorization.NATIVE and not isinstance(first, gymnasium.vector.VectorEnv):
        first.close()
        raise EnvironmentInvalid(
            f"{source} returned a single environment, but the job says vectorization: Native; return a "
            "gymnasium.vector.VectorEnv, or write vectorization: Sync"
        )
    return build, first  # type: ignore[return-value]


def _ready(env: VectorEnv, spec: EnvSpec, source: str) -> VectorEnv:
    if env.num_envs != spec.num_envs:
        env.close()
        raise EnvironmentInvalid(
            f"{source} returned a VectorEnv of {env.num_envs} environments, but {spec.num_envs} are asked for; "
            f"ask for {env.num_envs} (`num_envs`, in a job `numEnvs`), or pass the number to the factory in its kwargs"
        )
    if spec.wrappers:
        env.close()
        raise EnvironmentInvalid(
            f"{source} returned a VectorEnv, but wrappers take single environments; apply them inside the factory"
        )
    return env


def _loaded(entrypoint: str, source: str) -> Callable[..., object]:
    try:
        return load(entrypoint)
    except ValueError as exc:
        raise EnvironmentInvalid(f"{source}: {exc}") from exc
