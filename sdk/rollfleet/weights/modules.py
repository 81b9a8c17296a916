"""A policy's modules: inside of wrappers, copied, and with state that is neither a parameter nor a buffer."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from rollfleet_api.transfers import Flags

POLICY = "policy"  # the name of a policy's only model
EXTRA_STATE = "_extra_state"  # the end of a name in a `state_dict`

_Parallel = (DataParallel, DistributedDataParallel)


def unwrapped(policy: Any, *, compiled: bool = True) -> Any:
    """Return the module inside of DistributedDataParallel, DataParallel and, if `compiled`, torch.compile's."""
    inside = policy.module if isinstance(policy, _Parallel) else getattr(policy, "_orig_mod", None)
    if inside is None or not (compiled or isinstance(policy, _Parallel) or isinstance(inside, _Parallel)):
        return policy
    return unwrapped(inside, compiled=compiled)


def copy_of(policy: nn.Module) -> nn.Module:
    """Return a deep copy, also of attributes that torch cannot copy: those with gradients, as by `weight_norm`."""
    values = (value for module in policy.modules() for value in vars(module).values() if isinstance(value, Tensor))
    return copy.deepcopy(policy, {id(value): value.detach().clone() for value in values if not value.is_leaf})


def sources_of(policy: Any) -> dict[Any, Any]:
    """Return the models of a policy by name, see `models_of`: modules, unwrapped, or named tensors."""
    models = getattr(unwrapped(policy), "models", None)
    found = models.items() if isinstance(models, Mapping | nn.ModuleDict) else [(POLICY, policy)]
    return {name: unwrapped(model) for name, model in found}


def unprefixed(state: dict[str, Tensor], known: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the `state_dict` of a wrapped module by the names of the module inside, which are `known`."""
    for prefix in ("module.", "_orig_mod.", "module."):
        if known and not known.keys() & state.keys() and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def flags_of(policy: Any) -> Flags:
    """Return the `training` flags of a policy's modules; empty: it has no modules."""
    flags = {} if hasattr(policy, "flatten_keys") else {path: module.training for path, module in _modules(policy)}
    return tuple((path, flag) for path, flag in flags.items() if flags.get(path.rpartition(".")[0]) is not flag)


def complete(policy: Any, models: Mapping[str, Mapping[str, Tensor]], flags: Flags) -> None:
    """Set what tensors that are loaded in place leave out: the modules' extra state and `training` flags."""
    loaded = {f"{model}.{name}": value for model, state in models.items() for name, value in state.items()}
    known = dict(flags)
    for path, module in _modules(policy):
        if (flag := known.get(path, known.get(path.rpartition(".")[0]))) is not None:
            known[path] = module.training = flag
        if (extra := loaded.get(f"{path}.{EXTRA_STATE}")) is not None:
            module.set_extra_state(torch.inference_mode(False)(extra.clone)())  # a call outside of that mode may write


def _modules(policy: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules by path, outer ones first: also models that are no submodules of the policy."""
    for model, module in ({POLICY: unwrapped(policy)} | sources_of(policy)).items():
        if isinstance(module, nn.Module):
            yield from module.named_modules(prefix=model, remove_duplicate=False)
