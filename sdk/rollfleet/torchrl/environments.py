"""Environments as TorchRL's collectors prepare them, in this process or in a worker."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torchrl.envs import EnvBase, StepCounter, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

from rollfleet.envs.torchrl_env import KEEPS_SEEDS


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
        env = self._made()
        if self.device is not None:
            env = env.to(self.device)
        if self.max_frames:
            if any("step_count" in _parts(key) for key in env.output_spec.keys(True, True)):
                raise ValueError(
                    f"the environment has a key 'step_count' already; remove max_frames_per_traj={self.max_frames}, "
                    "and write the limit into its StepCounter"
                )
            env = TransformedEnv(env, StepCounter(max_steps=self.max_frames))
        vars(env)[KEEPS_SEEDS] = True
        return env

    def _made(self) -> Any:
        if not isinstance(self.make, EnvBase):
            return self.make(**self.kwargs)
        if self.kwargs:
            if not isinstance(self.make, BatchedEnvBase):
                raise RuntimeError(f"create_env_kwargs cannot be set on a {type(self.make).__name__} that exists")
            self.make.update_kwargs(dict(self.kwargs))
        return self.make


@dataclass(frozen=True, slots=True)
class EnvForm:
    """What a learner needs to know of its workers' environments.

    Attributes:
        batch_size: The environments' batch size.
        device: The device of batches; None: batches name none.
        repeated: Keys under `next` that the next frame has at its root.
    """

    batch_size: torch.Size
    device: torch.device | None
    repeated: tuple[Any, ...]

    @classmethod
    def of(cls, env: EnvBase, device: torch.device | None = None) -> "EnvForm":
        """Read it from an environment. A device is that of batches, in place of the environment's."""
        states = (*env.full_observation_spec.keys(True, True), *env.full_state_spec.keys(True, True))
        return cls(env.batch_size, device or env.device, tuple(("next", *_parts(key)) for key in states))

    @property
    def count(self) -> int:
        """The number of environments of a worker."""
        return int(self.batch_size.numel())


def form_of(prepared: PreparedEnv, device: torch.device | None, use: Callable[[EnvBase], object]) -> EnvForm:
    """Make an environment in this process, read its form, and close it, unless it is the caller's own.

    `device` is that of batches; None: the environment's. `use` is called with the environment before.
    """
    env = prepared()
    try:
        use(env)
        return EnvForm.of(env, device)
    finally:
        if not isinstance(prepared.make, EnvBase) and not env.is_closed:
            env.close()


def env_kwargs(written: Any, workers: int) -> list[Mapping[str, Any]]:
    """Return the keyword arguments of each worker's environment.

    Raises:
        ValueError: There is not one entry for each worker.
    """
    if written is None or isinstance(written, Mapping):
        return [written or {}] * workers
    if len(written) != workers:
        raise ValueError(f"len(create_env_kwargs) must be {workers}, the number of workers, and is {len(written)}")
    return [each or {} for each in written]


def device_of(*written: Any) -> torch.device | None:
    """Return the first device that was written."""
    return next((torch.device(each) for each in written if each is not None), None)


def _parts(key: Any) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)
