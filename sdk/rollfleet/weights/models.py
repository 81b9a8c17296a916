"""The models of a policy: its parts with weights, by name."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rollfleet.errors import JobInvalid, WeightMismatch
from rollfleet.weights.layout import State, state_of
from rollfleet.weights.modules import POLICY, sources_of, unwrapped


def models_of(policy: Any) -> dict[str, State]:
    """Return the named tensors of each model of a policy. Nothing is copied.

    A policy of several models has an attribute `models`, a ModuleDict or another mapping of names to modules. Any other
    policy is one model, named `policy`; a plain callable has no weights. A warning names weights in none of its models.

    Raises:
        WeightMismatch: Its weights are in a form that cannot be sent.
    """
    models = {
        _name(name): state_of({} if callable(each) and not hasattr(each, "state_dict") else each)
        for name, each in sources_of(policy).items()
    }
    if isinstance(module := unwrapped(policy), nn.Module) and [*models] != [POLICY]:
        _warn_of_rest(module, models)
    return models


def _warn_of_rest(policy: nn.Module, models: Mapping[str, State]) -> None:
    held = {tensor.data_ptr() for state in models.values() for tensor in state.values() if _has_memory(tensor)}
    own = {name: value for name, value in policy.state_dict().items() if _has_memory(value)}
    if left := [name for name, value in own.items() if value.data_ptr() not in held]:
        warnings.warn(
            f"{', '.join(left)}: in none of the policy's `models`, so they are not sent; put them into one, or give "
            "the attribute `models` another name",
            stacklevel=2,
        )


def _has_memory(value: object) -> bool:
    return isinstance(value, Tensor) and not is_lazy(value) and value.layout is torch.strided and not value.is_meta


def nan_in(models: Mapping[str, State]) -> str | None:
    """Return the name of the first tensor with NaN; None: none has. Infinity may be meant, such as in a mask."""
    with torch.no_grad():
        for name, tensor in (each for state in models.values() for each in state.items()):
            if tensor.is_floating_point():
                flat = tensor.reshape(-1) if tensor.element_size() > 1 else tensor.reshape(-1).float()
                if math.isnan(torch.dot(flat, flat)):
                    return name
    return None


def one_source(policy_or_weights: Any, *, weights: Any = None, policy: Any = None) -> Any:
    """Return the source of weights among three arguments; None: all are None.

    Raises:
        JobInvalid: Several are given, or `weights` is a module, or `policy` is not one.
    """
    ways = {"policy_or_weights": policy_or_weights, "weights": weights, "policy": policy}
    given = [name for name, source in ways.items() if source is not None]
    if len(given) > 1:
        raise JobInvalid(f"{' and '.join(f'`{name}`' for name in given)} are given at once; write one of them")
    if weights is not None and not _holds_tensors(weights):
        raise JobInvalid(f"`weights` are a dict or a TensorDict of tensors; write `policy=` for a {_kind(weights)}")
    if policy is not None and _holds_tensors(policy) and not isinstance(policy, nn.Module):
        raise JobInvalid(f"`policy` is a module; write `weights=` for a {_kind(policy)}")
    return next((source for source in ways.values() if source is not None), None)


def named_states(
    source: Any,
    model_id: str | None = None,
    weights_dict: Mapping[str, Any] | None = None,
    *,
    select: Callable[[Any], dict[str, State]] = models_of,
) -> dict[str, State] | None:
    """Return the models in a call of `update_policy_weights_`; None: those of the collector's own policy.

    Args:
        source: See `one_source`.
        model_id: See `Collector.update_policy_weights_`.
        weights_dict: See `Collector.update_policy_weights_`.
        select: Selects the tensors of a policy to send.

    Raises:
        JobInvalid: The arguments contradict each other.
        WeightMismatch: A source has no weights.
    """
    if weights_dict is not None:
        if source is not None or model_id is not None:
            raise JobInvalid("`weights_dict` names models and their weights itself; remove the other arguments")
        if not isinstance(weights_dict, Mapping | nn.ModuleDict):
            raise JobInvalid(f"`weights_dict` is a dict of models' weights by name, not a {_kind(weights_dict)}")
        return {_name(name): state_of(weights) for name, weights in weights_dict.items()}
    if model_id is not None:
        if source is None:
            raise JobInvalid(f"`model_id={model_id!r}` needs the weights of that model; pass them first")
        return {_name(model_id): state_of(source)}
    if source is None:
        return None
    return models_of(source) if _holds_tensors(source) else select(source)


def _holds_tensors(value: object) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "flatten_keys")  # a TensorDict has the latter


def _kind(value: object) -> str:
    return type(value).__name__


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or "." in name:
        raise WeightMismatch(f"{name!r} is not a valid name of a model; write a word without dots")
    return name
