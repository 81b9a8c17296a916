"""Environments as TorchRL's collectors prepare them, in this process or in a worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torchrl.envs import EnvBase, StepCounter, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

from rollfleet.data.tensor_tree import key_of
from rollfleet.envs.torchrl_env import KEEPS_SEEDS

DEVICES = ("storing_device", "policy_device", "env_device")
"""Arguments of a collector that name a device. Each defaults to `device`."""


@dataclass(frozen=True, slots=True)
class PreparedEnv:
    """A function that makes a worker's environment. It travels to the worker.

    Attributes:
        make: The user's function, or an environment itself.
        kwargs: Its keyword arguments.
        device: The environment's device; None: its own.
        max_frames: Frames after which a trajectory is truncated; 0: no limit.
    """

    make: Any
    kwargs: Mapping[str, Any]
    device: torch.device | None
    max_frames: int

    def __call__(self) -> EnvBase:
        """Make the environment.

        Raises:
            ValueError: The environment counts steps itself, and a limit would contradict its own.
            RuntimeError: There are keyword arguments for an environment that exists.
        """
        env = self.make
        if not isinstance(env, EnvBase):
            env = env(**self.kwargs)
        elif isinstance(env, BatchedEnvBase):
            env.update_kwargs(dict(self.kwargs))
        elif self.kwargs:
            raise RuntimeError(f"create_env_kwargs cannot be set on a {type(env).__name__} that exists")
        if self.device is not None:
            env = env.to(self.device)
        if self.max_frames:
            if any("step_count" in key_of(key) for key in env.output_spec.keys(True, True)):
                raise ValueError(
                    f"the environment has a key 'step_count' already; remove max_frames_per_traj={self.max_frames}, "
                    "and write the limit into its StepCounter"
                )
            env = TransformedEnv(env, StepCounter(max_steps=self.max_frames))
        vars(env)[KEEPS_SEEDS] = True
        return env


def each_of(value: Any, count: int, name: str) -> list[Any]:
    """Return the value of an argument for each worker: the entries of a list, or one value for all.

    Raises:
        ValueError: A list has another length.
    """
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"`{name}` has {len(value)} entries for {count} workers")
    return list(value)


def listed(value: Any) -> list[Any]:
    """Return the entries of a sequence; of one value, it alone. An environment is one, although it has a length."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, EnvBase) else [value]


def device_of(*written: Any) -> torch.device | None:
    """Return the first device that was written."""
    return next((torch.device(each) for each in written if each is not None), None)
