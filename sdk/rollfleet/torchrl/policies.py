"""Policies as TorchRL's collectors take them."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import CudaGraphModule
from torch import nn
from torchrl.envs import EnvBase
from torchrl.modules import RandomPolicy, set_exploration_modules_spec_from_env

from rollfleet.errors import PolicyInvalid
from rollfleet.policies.tensordict_policy import tensordict_policy
from rollfleet.weights.modules import copy_of, unwrapped


def with_spec(policy: Any, env: EnvBase, *, trusted: bool = False) -> Any:
    """Return a policy that knows what it acts on: `RandomPolicy()` without a spec takes the environment's.

    Raises:
        TypeError: Its arguments are not observations of the environment, as TorchRL says it.
    """
    if (policy := unwrapped(policy, compiled=False)) is None:
        return RandomPolicy(env.full_action_spec)
    if isinstance(policy, RandomPolicy):
        policy.set_action_spec_from_env(env)
    if isinstance(policy, nn.Module):
        set_exploration_modules_spec_from_env(policy, env)
    if not trusted:
        try:
            tensordict_policy(policy, env)
        except PolicyInvalid as error:
            raise TypeError(
                f"Arguments to policy.forward are incompatible with entries in the environment: {error}"
            ) from error
    return policy


def called_first(policy: Any, env: EnvBase, given: Mapping[str, Any]) -> bool:
    """Whether TorchRL's collector calls a policy when it is made: where it allocates batches of unknown outputs."""
    outputs, spec = getattr(policy, "out_keys", ()), getattr(policy, "spec", None)
    if not (given["replay_buffer"] is None if given["use_buffers"] is None else given["use_buffers"]):
        return not outputs
    known = {} if spec is None else dict(spec.items(True, True))
    of_env = known.keys() <= {*env.fake_tensordict().keys(True)}
    return None in known.values() or spec is None or bool({*outputs} - (set() if of_env else known.keys()))


def acting(policy: Any, given: Mapping[str, Any]) -> Any:
    """Return what acts in place of a policy with its parameters, by a collector's arguments.

    `trust_policy`: it is called with a TensorDict, whatever its signature. `compile_policy` and `cudagraph_policy`:
    True, or keyword arguments of `torch.compile` and of `CudaGraphModule`.
    """
    compiled, graph = given.get("compile_policy"), given.get("cudagraph_policy")
    options = compiled if isinstance(compiled, Mapping) else {}
    if compiled and isinstance(policy, nn.Module):
        policy = copy.copy(policy)  # has the same parameters, and the caller's module stays as it is
        policy.compile(**options)
    elif compiled and not isinstance(policy, RandomPolicy):
        policy = torch.compile(policy, **options)
    if graph:
        policy = CudaGraphModule(policy, **({} if graph is True else graph))
    return policy if isinstance(policy, nn.Module) or not given.get("trust_policy") else partial(_called, policy)


def _called(policy: Callable[[TensorDictBase], TensorDictBase], tensordict: TensorDictBase) -> TensorDictBase:
    return policy(tensordict)


def made(make: Callable[[], Any], given: Mapping[str, Any]) -> Any:
    """Return what acts in place of the policy that a factory makes."""
    return acting(make(), given)


def without_weights(policy: Any) -> Any:
    """Return a copy of a module in CPU memory with weights of zeros, which take no space. The learner sends its own."""
    if not isinstance(policy, nn.Module):
        return policy
    copied = copy_of(policy).to("cpu")
    with torch.no_grad():
        for tensor in copied.state_dict().values():
            tensor.zero_()
    return copied
