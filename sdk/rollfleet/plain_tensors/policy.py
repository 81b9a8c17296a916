"""Policies of TorchRL and tensordict as functions that write into the values of a step."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from rollfleet.data.tensor_tree import key_of, nested
from rollfleet.plain_tensors.heads import Act, head
from rollfleet.plain_tensors.known import Untranslated, changed, check_own, look_again
from rollfleet.plain_tensors.transforms import Values

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class PlainPolicy:
    """Acts as a policy does, with the same draws and the same changes of its state, on tensors by key.

    Groups of the values have the batch size of the whole.
    """

    def __init__(self, policy: Any) -> None:
        self._policy, self._acts = policy, list[Act]()

    def refresh(self, batch_size: Sequence[int] = ()) -> Untranslated | None:
        """Read the policy and `interaction_type()` as they are now, for one batch; return what has no translation."""
        from tensordict.nn.probabilistic import interaction_type
        from tensordict.nn.utils import skip_existing

        try:
            look_again()
            if skip_existing() or torch_module._has_any_global_hook():
                raise Untranslated("set_skip_existing, or hooks of all modules")
            self._acts = _acts(self._policy, torch.Size(batch_size), interaction_type())
            if all(isinstance(act, partial) for act in self._acts):  # which costs more than TorchRL's own path
                raise Untranslated("all its modules are called themselves")
        except Untranslated as kept:
            return kept
        return None

    def __call__(self, values: Values) -> None:
        """Write the policy's outputs into the values of a step."""
        for act in self._acts:
            act(values)


def _acts(module: Any, sizes: torch.Size, how: str | None) -> list[Act]:
    """Return what a module does, in order."""
    from torchrl.modules.tensordict_module.common import _forward_hook_safe_action

    name = check_own(module, "policy", TRANSLATED)
    hooks = [hook for each in HOOKS for hook in vars(module).get(each, {}).values()]
    for hook in hooks:
        if hook is not _forward_hook_safe_action:  # of `safe=True`
            raise Untranslated(f"a hook of {name}: {getattr(hook, '__name__', type(hook).__name__)}")
    translate, own = TRANSLATED[name], partial(_on_tensordict, module, sizes)
    for option, usual in (("inplace", (True,) if translate is _module else (True, None)), ("num_samples", (None, ()))):
        if (given := getattr(module, option, usual[0])) not in usual:
            raise Untranslated(f"{option}={given} of {name}")
    if translate is _parts:
        acts = [act for part in _parts(module, how) for act in _acts(part, sizes, how)]
        return [own] if module._select_before_return or module.partial_tolerant or hooks or not acts else acts
    names = () if translate is None else (*module.in_keys, *module.out_keys)
    plain = not hooks and all(key != "_" and len(key_of(key)) == 1 for key in names)
    return [(translate and plain and translate(module, sizes, how, own)) or own]


def _on_tensordict(module: Callable[[Any], object], sizes: torch.Size, values: Values) -> None:
    """Call a module itself, with a TensorDict of the values."""
    from tensordict import TensorDict, is_leaf_nontensor

    tensordict = TensorDict(nested(values), batch_size=sizes)
    module(tensordict)
    values.clear()
    values.update((key_of(name), value) for name, value in tensordict.items(True, True, is_leaf=is_leaf_nontensor))


def _parts(module: Any, how: str | None) -> list[Any]:
    """Return the modules of a sequence; none, if it must be called itself."""
    if not hasattr(module, "return_composite"):
        return list(module._module_iter())
    if how is None or not module._requires_sample:
        return []
    return list(module._module_iter()) if module.return_composite else [module._det_part, module._last_module]


def _module(module: Any, sizes: torch.Size, how: str | None, own: Act) -> Act | None:
    if module._get_kwargs or module._kwargs or module.method_kwargs or module.method:
        return None
    run, reads, writes = function_of(module.module), [*map(key_of, module.in_keys)], [*map(key_of, module.out_keys)]

    def act(values: Values) -> object:
        try:
            inputs = [values[key] for key in reads]
        except KeyError:  # it is a group, or may be missing
            return own(values)
        found = run(*inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        if len(outputs) != len(writes) or not all(isinstance(value, Tensor) for value in outputs):
            write: Act = partial(_on_tensordict, partial(_write, module, found), sizes)
            return write(values)
        return values.update(zip(writes, outputs, strict=True))

    return act


def _write(module: Any, found: Any, tensordict: Any) -> None:
    """Write what a TensorDictModule's network returned, in whatever form, as it does itself."""
    from tensordict import TensorDictBase

    if isinstance(found, dict | TensorDictBase) and all(key in found for key in module.out_keys):
        found = tuple(found.get(key) for key in module.out_keys)
    outputs = () if found is None else found if isinstance(found, tuple) else (found,)
    module._write_to_tensordict(tensordict, outputs)


def _q_value(module: Any, sizes: torch.Size, how: str | None, own: Act) -> Act | None:
    hot, space = module.action_space == "one_hot", module.action_space
    maps = [each.get(space) for each in (module.action_func_mapping, module.action_value_func_mapping)]
    usual = [module._one_hot, None] if hot else [module._categorical, module._categorical_action_value]
    if not (hot or space == "categorical") or module.action_mask_key is not None or maps != usual:
        return None
    key, writes = key_of(module.action_value_key), [*map(key_of, module.out_keys)]
    spec = module.spec.get(module.out_keys[0], None) if module.strict_shape is not False else None
    shape = () if spec is None else spec.shape[len(module.spec.shape) :]

    def act(values: Values) -> object:
        found = values[key]
        action = (found == found.amax(-1, True)).long() if hot else torch.argmax(found, dim=-1)
        if spec is not None and action.shape != (*found.shape[:-1], *shape):
            return own(values)
        chosen = (action * found).sum(-1, True) if hot else found.gather(-1, action.unsqueeze(-1))
        return values.update(zip(writes, (action, found, chosen), strict=False))

    return act


def _epsilon_greedy(module: Any, sizes: torch.Size, how: str | None, own: Act) -> Act | None:
    from torchrl.data import OneHot

    if how not in ("random", None):
        return lambda values: None
    if module.spec is None or module.action_mask_key is not None or not module.eps.is_cpu:
        return None
    key, eps, spec = key_of(module.out_keys[0]), module.eps, module.spec[module.action_key]
    if type(spec) is not OneHot or changed(spec, ("encode",)) or spec.mask is not None or spec.device.type != "cpu":
        return None
    n, dtype, dims, threshold = spec.space.n, spec.dtype, len(spec.shape), eps.item()
    each = (rows := torch.eye(n, dtype=dtype, device="cpu")).unbind()

    def act(values: Values) -> object:
        action = values[key]
        shape, more = action.shape, action.ndim - len(sizes)
        if shape[-dims:] != spec.shape or more < 1:
            return own(values)
        random = torch.rand(sizes, device="cpu")
        drawn = torch.randint(n, shape[:-1], device="cpu")
        if len(shape) > 1:
            values[key] = torch.where((random < eps).view(*sizes, *[1] * more), rows[drawn], action)
        else:  # one action, and less work
            chosen = each[int(drawn)] if random.item() < threshold else action
            values[key] = chosen.to(torch.promote_types(dtype, action.dtype), copy=True)
        return None

    return act


def function_of(network: Any) -> Callable[..., Any]:
    """Return what a call of a network runs now: the network itself, if it is no usual module, or has hooks."""
    kind = type(network)
    is_mlp = kind.__name__ == "MLP" and kind.__module__.startswith("torchrl.") and not network._reshape_out
    if (
        not (is_mlp or kind in (nn.Linear, nn.Sequential))
        or changed(network)
        or any(vars(network).get(name) for name in HOOKS)
    ):
        return network  # type: ignore[no-any-return]
    if kind is nn.Linear:
        weight, bias = network.weight, network.bias
        return lambda value: functional.linear(value, weight, bias)
    layers = [function_of(layer) for layer in network._modules.values()]

    def run(*inputs: Any) -> Any:
        if len(inputs) != 1:
            return network(*inputs)
        (value,) = inputs
        for layer in layers:
            value = layer(value)
        return value

    return run


_SEQUENCES = "TensorDictSequential", "SafeSequential", "ActorValueOperator", "ActorCriticOperator", "ActorCriticWrapper"
_DRAWING = "ProbabilisticTensorDictSequential", "SafeProbabilisticTensorDictSequential", "ProbabilisticActor"
_NOISE = "AdditiveGaussianModule", "OrnsteinUhlenbeckProcessModule", "TanhModule", "RandomPolicy"

TRANSLATED: dict[str, Callable[..., Any] | None] = {
    **dict.fromkeys((*_SEQUENCES, *_DRAWING, "QValueActor"), _parts),
    **dict.fromkeys(("TensorDictModule", "SafeModule", "Actor", "ValueOperator"), _module),
    **dict.fromkeys(("ProbabilisticTensorDictModule", "SafeProbabilisticModule"), head),
    **dict.fromkeys((*_NOISE, "LSTMModule", "GRUModule")),
    "QValueModule": _q_value,
    "EGreedyModule": _epsilon_greedy,
}
"""Classes by name, and what translates them. None: their modules are called themselves, on a TensorDict.

A function of a single module returns None where the module must be called itself, too.
"""
