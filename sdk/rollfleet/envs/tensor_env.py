"""Environments that make tensors, adapted to rollouts: actions go to their device, results come back as arrays.

A rollout writes into arrays in CPU memory. Results that are NumPy arrays already are passed through.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from gymnasium.vector import VectorEnv, VectorWrapper
from torch import Tensor

from rollfleet.errors import EnvironmentInvalid


class Bridge:
    """Converts between arrays and the tensors of an environment on a device.

    Args:
        env: The environment. If it has a method `to`, it is moved to the device.
        device: The environment's device.
        no_cuda_sync: Do not wait until actions have arrived. Their source must then stay unchanged, which holds for
            CPU memory that is not pinned.
    """

    def __init__(self, env: Any, device: torch.device, *, no_cuda_sync: bool) -> None:
        self._name, self._device, self._no_cuda_sync = str(env), device, no_cuda_sync
        self._has_tensors = False
        if callable(getattr(env.unwrapped, "to", None)):
            env.unwrapped.to(device)

    def actions(self, value: Any) -> Any:
        """Return actions as tensors on the device, in the same structure; unchanged if the environment has arrays."""
        if not self._has_tensors:
            return value
        if isinstance(value, Mapping):
            return {name: self.actions(inner) for name, inner in value.items()}
        if isinstance(value, tuple):
            return tuple(self.actions(inner) for inner in value)
        return torch.as_tensor(value, device="cpu").to(self._device, non_blocking=self._no_cuda_sync)

    def first(self, observation: Any) -> Any:
        """Return a reset's observation as arrays, and remember whether the environment has tensors.

        Raises:
            EnvironmentInvalid: It has none, but its device is not the CPU.
        """
        self._has_tensors = _any_tensor(observation)
        if not self._has_tensors and self._device.type != "cpu":
            raise EnvironmentInvalid(
                f"environment {self._name} returns NumPy arrays in CPU memory, not tensors on {str(self._device)!r}; "
                "remove `env_device`, or use an environment that makes tensors there"
            )
        return arrays(observation)


def arrays(value: Any) -> Any:
    """Return tensors as arrays in CPU memory, in the same structure; other values stay unchanged."""
    if isinstance(value, Tensor):
        return value.numpy(force=True)
    if isinstance(value, Mapping):
        return {name: arrays(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(arrays(inner) for inner in value)
    return value


def _any_tensor(value: Any) -> bool:
    if isinstance(value, Mapping | tuple):
        return any(_any_tensor(inner) for inner in (value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, Tensor)


class TensorEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A single environment on a device."""

    def __init__(self, env: gymnasium.Env[Any, Any], device: torch.device, no_cuda_sync: bool = False) -> None:
        """See `Bridge`."""
        super().__init__(env)
        self._bridge = Bridge(env, device, no_cuda_sync=no_cuda_sync)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """See `gymnasium.Env`."""
        *result, info = self.env.step(self._bridge.actions(action))
        return (*arrays(tuple(result)), info)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env`."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._bridge.first(observation), info


class TensorVectorEnv(VectorWrapper):
    """A vector environment on a device."""

    env: Any  # its `reset` also takes lists of seeds, which Gymnasium does not promise for all

    def __init__(self, env: VectorEnv[Any, Any, Any], device: torch.device, no_cuda_sync: bool = False) -> None:
        """See `Bridge`."""
        super().__init__(env)
        self._bridge = Bridge(env, device, no_cuda_sync=no_cuda_sync)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """See `gymnasium.vector.VectorEnv`."""
        return arrays(tuple(self.env.step(self._bridge.actions(actions))))  # type: ignore[no-any-return]

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.vector.VectorEnv`."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._bridge.first(observation), arrays(info)
