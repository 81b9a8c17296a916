"""Environments as TorchRL's collectors prepare them, in this process or in a worker."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torchrl.envs import EnvBase, ParallelEnv, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

from rollfleet.envs.torchrl_env import KEEPS_SEEDS, with_transforms

DEVICES = ("storing_device", "policy_device", "env_device")
"""Arguments of a collector that name a device. Each defaults to `device`."""


def prepared(
    make: Any, kwargs: Mapping[str, Any], device: torch.device | None, max_frames: int, policy: Any = None
) -> EnvBase:
    """Make a worker's environment, with the seed that it has.

    Args:
        make: The user's function, or an environment itself.
        kwargs: Its keyword arguments.
        device: The environment's device; None: its own.
        max_frames: Frames after which a trajectory is truncated; 0: no limit.
        policy: The policy that needs transforms; None: its worker knows it.

    Raises:
        EnvironmentInvalid: The environment counts steps itself, and a limit would contradict its own.
        RuntimeError: There are keyword arguments for an environment that exists.
    """
    env = make
    if not isinstance(env, EnvBase):
        env = env(**kwargs)
    elif isinstance(env, BatchedEnvBase):
        env.update_kwargs(dict(kwargs))
    elif kwargs:
        raise RuntimeError(f"create_env_kwargs cannot be set on a {type(env).__name__} that exists")
    env = env if device is None else env.to(device)
    if max_frames:
        env = TransformedEnv(env)  # the user's own stays without the limit
    vars(env)[KEEPS_SEEDS] = True
    env = with_transforms(env, {"max_frames_per_traj": max_frames}, policy)
    vars(env)[KEEPS_SEEDS] = True  # of the transformed one, too
    return env


def without_processes(env: Any) -> None:
    """End the processes of a `ParallelEnv`, so that it can be sent; its next use starts new ones."""
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if isinstance(env, ParallelEnv):
        env.close(raise_if_closed=False)
        vars(env).pop("_shm_done_flags", None)  # memory of the ended processes, which TorchRL keeps


def listed(value: Any) -> list[Any]:
    """Return the entries of a sequence; of one value, it alone. An environment is one, although it has a length."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, EnvBase) else [value]


def device_of(*written: Any) -> torch.device | None:
    """Return the first device that was written."""
    return next((torch.device(each) for each in written if each is not None), None)
