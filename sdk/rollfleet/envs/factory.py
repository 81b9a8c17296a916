"""A worker's environments, built from a job's `env`.

Environments that are built here do not reset by themselves (`AutoresetMode.DISABLED`). The rollout resets those that
ended: no step is spent on it, and the last observation of an episode is never overwritten.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from gymnasium.vector import AutoresetMode

from rollfleet.arguments import shown
from rollfleet.envs.env_pool import EnvPoolVectorEnv
from rollfleet.envs.gymnasium_backend import VectorEnv, build_gymnasium
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.settings import Settings
from rollfleet.envs.spaces import supported
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.envs.tensor_env import TensorVectorEnv
from rollfleet.envs.torchrl_env import TorchRLEnv
from rollfleet.errors import EnvironmentInvalid
from rollfleet_api.job import Backend, EnvSpec, Vectorization

__all__ = ["VectorEnv", "check", "give", "make_env", "make_one", "slow_servers"]

Build: TypeAlias = Callable[[EnvSpec, str, Callable[..., object] | None, Mapping[str, object]], VectorEnv]
"""Builds environments from a job's `env`, the name of their source for messages, a factory that replaces an entrypoint,
and the keyword arguments of `TensorEnv` (empty: no device)."""

BACKENDS: Mapping[Backend, Build] = {
    Backend.GYMNASIUM: build_gymnasium,
    Backend.TORCHRL: build_gymnasium,  # an entrypoint shows by its result what it makes
    Backend.ENVPOOL: lambda spec, *_: EnvPoolVectorEnv(spec.id or "", spec.num_envs, spec.kwargs),
}
"""All backends. A new one needs a value of the model's `Backend`, a file beside this one, and a line here."""


def make_env(
    spec: EnvSpec,
    factory: Callable[..., object] | None = None,
    *,
    device: torch.device | None = None,
    no_cuda_sync: bool = False,
) -> VectorEnv:
    """Build the environments of one worker.

    Args:
        spec: A job's `env`.
        factory: Called instead of the entrypoint; None: the entrypoint is called.
        device: The device of environments that make tensors; actions go there. None: they make arrays.
        no_cuda_sync: Do not wait until actions have arrived on the device.

    Raises:
        EnvironmentInvalid: They could not be built, or have an unsupported space. The message names the id or
            entrypoint, the cause, and the fix.

    Example:
        >>> from rollfleet import make_env
        >>> from rollfleet_api.job import EnvSpec
        >>> env = make_env(EnvSpec(id="CartPole-v1", num_envs=2))
        >>> observation, _ = env.reset(seed=0)
        >>> observation.shape
        (2, 4)
        >>> env.close()
    """
    if not isinstance(spec, EnvSpec):
        raise EnvironmentInvalid(f"spec: expected a rollfleet_api.job.EnvSpec(id='CartPole-v1'), got {shown(spec)}")
    source = _source(spec, factory)
    on_device = {} if device is None else {"device": device, "no_cuda_sync": no_cuda_sync}
    env = BACKENDS[spec.backend](spec, source, factory, on_device)
    if isinstance(env, TorchRLEnv):
        return env
    if device is not None and not isinstance(env, SerialVectorEnv | ProcessVectorEnv):  # these wrap each environment
        env = TensorVectorEnv(env, device, no_cuda_sync)
    try:
        check(env, source)
    except EnvironmentInvalid:
        env.close()
        raise
    return env


def make_one(spec: EnvSpec) -> VectorEnv:
    """Build one environment like those of a job, stepped in this process; the whole of an entrypoint's `VectorEnv`."""
    stepped = Vectorization.SYNC if spec.vectorization is Vectorization.ASYNC else spec.vectorization
    try:
        return make_env(
            spec.model_copy(update={"num_envs": 1, "processes": 0, "servers": None, "vectorization": stepped})
        )
    except EnvironmentInvalid:
        if spec.entrypoint is None or spec.num_envs == 1:
            raise
        return make_env(spec)  # it may make environments of this number only


def check(env: VectorEnv, source: str) -> AutoresetMode:
    """Check that a rollout supports an environment, and return its autoreset mode.

    Raises:
        EnvironmentInvalid: A space is not supported, or the environment does not declare its mode.
    """
    supported(env.single_observation_space, "observation", source)
    supported(env.single_action_space, "action", source)
    try:
        return AutoresetMode(env.metadata["autoreset_mode"])
    except (KeyError, ValueError) as exc:
        raise EnvironmentInvalid(
            f"{source}: this vector environment does not declare how it resets; write "
            'metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP} (or SAME_STEP, DISABLED) in its class'
        ) from exc


def give(env: VectorEnv | TorchRLEnv, settings: Settings) -> None:
    """Give environments their settings: single ones at their next reset, a batch at once.

    Raises:
        EnvironmentInvalid: It is a batch, and does not take them.
    """
    inner = env.unwrapped
    if isinstance(inner, ProcessVectorEnv) and not inner.resets_on_request:
        raise EnvironmentInvalid(
            f"environment {env}: a vector of `make_vec` in a wrapper takes no settings; pass it to the collector "
            "without the wrapper, and wrap its single environments"
        )
    if isinstance(inner, SerialVectorEnv | ProcessVectorEnv):
        inner.settings = settings
    else:
        settings.give(env.base if isinstance(env, TorchRLEnv) else inner)


def slow_servers(env: VectorEnv | TorchRLEnv) -> str:
    """Return which servers of environments answer many times slower than the others, in words; empty: none."""
    return env.unwrapped.slow_servers if isinstance(env.unwrapped, ProcessVectorEnv) else ""


def _source(spec: EnvSpec, factory: Callable[..., object] | None) -> str:
    if factory is not None:
        return f"environment factory {getattr(factory, '__qualname__', factory)!r}"
    return f"environment {spec.id!r}" if spec.id is not None else f"environment entrypoint {spec.entrypoint!r}"
