"""Policies as TorchRL's collectors take them."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import CudaGraphModule
from torch import nn
from torchrl.envs import EnvBase
from torchrl.modules import RandomPolicy

from rollfleet.errors import PolicyInvalid
from rollfleet.policies.tensordict_policy import tensordict_policy


def with_spec(policy: Any, env: EnvBase, *, trusted: bool = False) -> Any:
    """Return a policy that knows what it acts on: `RandomPolicy()` without a spec takes the environment's.

    Raises:
        TypeError: Its arguments are not observations of the environment, as TorchRL says it.
    """
    if policy is None:
        return RandomPolicy(env.full_action_spec)
    if isinstance(policy, RandomPolicy):
        policy.set_action_spec_from_env(env)
    if not trusted:
        try:
            tensordict_policy(policy, env)
        except PolicyInvalid as error:
            raise TypeError(
                f"Arguments to policy.forward are incompatible with entries in the environment: {error}"
            ) from error
    return policy


@dataclass(frozen=True, slots=True)
class Acting:
    """Makes of a policy what acts in its place, here or on a worker.

    Attributes:
        trusted: Whether it is called with a TensorDict, whatever its signature (`trust_policy`).
        compile: Keyword arguments of `torch.compile`; None: it is not compiled.
        cuda_graph: Keyword arguments of `CudaGraphModule`; None: no CUDA graph.
    """

    trusted: bool
    compile: Mapping[str, Any] | None
    cuda_graph: Mapping[str, Any] | None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "Acting":
        """Take it from a collector's arguments."""
        compiled, graph = arguments.get("compile_policy"), arguments.get("cudagraph_policy")
        return cls(bool(arguments.get("trust_policy")), _options(compiled), _options(graph))

    def __call__(self, policy: Any) -> Any:
        """Return the policy itself, or what acts in its place with the same parameters."""
        if self.compile is not None and isinstance(policy, nn.Module):
            policy = copy.copy(policy)  # has the same parameters, and the caller's module stays as it is
            policy.compile(**self.compile)
        if self.cuda_graph is not None:
            policy = CudaGraphModule(policy, **self.cuda_graph)
        return policy if isinstance(policy, nn.Module) or not self.trusted else Trusted(policy)

    def made(self, make: Callable[[], Any]) -> Any:
        """Return what acts in place of the policy that a factory makes."""
        return self(make())


def without_weights(policy: Any) -> Any:
    """Return a copy of a module in CPU memory with weights of zeros, which take no space. The learner sends its own."""
    if not isinstance(policy, nn.Module):
        return policy
    copied = copy.deepcopy(policy).to("cpu")
    with torch.no_grad():
        for tensor in copied.state_dict().values():
            tensor.zero_()
    return copied


@dataclass(frozen=True, slots=True)
class Trusted:
    """A callable that takes a TensorDict, although its signature does not show it."""

    policy: Callable[[TensorDictBase], TensorDictBase]

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Act."""
        return self.policy(tensordict)


def _options(value: Any) -> Mapping[str, Any] | None:
    if not value:
        return None
    return {} if value is True else dict(value)
