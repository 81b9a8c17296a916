"""Transforms of TorchRL as functions of a step's values. Their state stays their own.

A transform acts here in a step alone. Resets are rarer, and TorchRL's own: `_reset` has no translation.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from rollfleet.data.tensor_tree import Key, key_of
from rollfleet.plain_tensors.known import Refused, check_own, flat_key

Values: TypeAlias = dict[Key, Tensor]
Step: TypeAlias = Callable[[Values, Values], Values]
"""Takes the values of a step and those that follow it, and returns the latter, changed."""


def steps_of(transform: Any) -> Iterator[tuple[Step | None, Step | None]]:
    """Yield for each transform of a chain what it does after a step and, to a copy of the values, before it.

    Raises:
        Refused: One has no translation.
    """
    from torchrl import envs

    name = type(transform).__name__
    if name != "Compose" and name not in TRANSLATED:
        raise Refused(f"transform {name}")
    check_own(transform, getattr(envs, name))
    if name == "Compose":
        for part in transform.transforms:
            yield from steps_of(part)
        return
    inverse = _each(transform, transform._inv_apply_transform, transform.out_keys_inv, transform.in_keys_inv)
    if inverse and TRANSLATED[name][0] is not _each_value:
        raise Refused(f"{name} with in_keys_inv")
    yield TRANSLATED[name][0](transform), inverse


def _pairs(first: Sequence[Any], second: Sequence[Any]) -> list[tuple[Key, Key]]:
    return [(flat_key(one), flat_key(two)) for one, two in zip(first, second, strict=True)]


def _each_value(transform: Any) -> Step | None:
    """Translate a transform of single tensors, by its own `_apply_transform`."""
    return _each(transform, transform._apply_transform, transform.in_keys, transform.out_keys)


def _each(transform: Any, apply: Callable[[Tensor], Tensor], keys: Any, out_keys: Any) -> Step | None:
    pairs = _pairs(keys, out_keys)

    def step(_: Values, following: Values) -> Values:
        for key, out in pairs:
            if (value := following.get(key)) is not None:
                following[out] = apply(value)
            elif not transform.missing_tolerance:
                raise KeyError(f"{transform}: '{key[0]}' not found in tensordict {list(following)}")
        return following

    return step if pairs else None


def _only_resets(transform: Any) -> Step | None:
    """Translate a transform that does nothing in a step."""
    return None


def _counted(transform: Any) -> Step:
    """Translate `StepCounter`."""
    keys = (transform.step_count_keys, transform.all_truncated_keys, transform.all_done_keys)
    if any(len(each) != 1 for each in keys):
        raise Refused("StepCounter of groups")
    count, truncated, done = (flat_key(name) for (name,) in keys)
    limit, also_done = transform.max_steps, transform.update_done

    def step(values: Values, following: Values) -> Values:
        following[count] = steps = values[count] + 1
        if limit is not None:
            cut = (steps >= limit) | following.get(truncated, False)
            if also_done:
                following[done] = cut | following[done]
            following[truncated] = cut
        return following

    return step


def _summed(transform: Any) -> Step:
    """Translate `RewardSum`."""
    pairs = _pairs(transform.in_keys, transform.out_keys)

    def step(values: Values, following: Values) -> Values:
        for key, out in pairs:
            if key in following:
                following[out] = values.get(out, 0.0) + following[key]
            elif not transform.missing_tolerance:
                raise KeyError(f"'{key[0]}' not found in tensordict {list(values)}")
        return following

    return step


def _normalised(transform: Any) -> Step:
    """Translate `VecNormV2`, with the operations of TensorDict on each tensor."""
    if not transform.stateful or transform.reduce_batch_dims or transform._cast_int_to_float or transform.decay >= 1:
        raise Refused("VecNormV2 without state or decay, of integers, or with reduce_batch_dims")
    if not transform.initialized or transform._loc is None or transform.missing_tolerance:
        raise Refused("VecNormV2 without statistics")
    statistics = [
        (key, out, transform._loc.get(key[0]), transform._var.get(key[0]), transform._count.get(key[0]))
        for key, out in _pairs(transform.in_keys, transform.out_keys)
    ]
    frozen, eps, lock = transform.frozen, transform.eps, transform.lock
    weight, log_decay = 1 - transform.decay, math.log(transform.decay)

    def step(_: Values, following: Values) -> Values:
        found = []
        with lock:
            for key, out, loc, var, count in statistics:
                value = following[key]
                if not frozen:
                    count += 1
                    loc.lerp_(value, weight)
                    var.lerp_(value.pow(2), weight)
                bias = (count * log_decay).exp().sub(1).neg().to(value.dtype)
                scale = var.sub(loc.pow(2)).div(bias).sqrt().clamp_min(eps)
                found.append((out, value.sub(loc.div(bias)).div(scale)))
        following.update(found)
        return following

    return step


def _by_its_own_step(transform: Any) -> Step:
    """Translate a transform by its own code, which sees a dict in the place of a TensorDict."""
    for name in ("in_keys", "out_keys", "excluded_keys", "selected_keys", "init_keys", "primers"):
        for key in getattr(transform, name, ()):
            flat_key(key)
    if getattr(transform, "inverse", False):
        raise Refused(f"{type(transform).__name__} with inverse")
    if hasattr(transform, "_td"):  # VecNorm
        known = () if transform._td is None else transform._td.keys()
        if not {f"{name}_sum" for name in transform.in_keys} <= {*known}:
            raise Refused("VecNorm without statistics")
    env, own_step = transform.parent, transform._step

    def step(values: Values, following: Values) -> Values:
        found: Values = own_step(_View(env, values), _View(env, following)).values
        return found

    return step


class _View:
    """Values in the place of a TensorDict, as far as the transforms below use one."""

    __slots__ = ("env", "values")

    def __init__(self, env: Any, values: Values) -> None:
        self.env, self.values = env, values

    device = property(lambda self: self.env.device)

    def numel(self) -> int:
        return max(1, self.env.batch_size.numel())

    def keys(self, *_: Any, **__: Any) -> list[Any]:
        return [key if len(key) > 1 else key[0] for key in self.values]

    def get(self, name: Any, default: Any = None) -> Any:
        return self.values.get(key_of(name), default)

    def set(self, name: Any, value: Tensor) -> None:
        self.values[key_of(name)] = value

    def update(self, other: "_View") -> "_View":
        self.values.update(other.values)
        return self

    def rename_key_(self, name: str, new: str) -> None:
        self.set(new, self.values[name,])
        if new != name:
            del self.values[name,]

    def select(self, *names: str, strict: bool) -> "_View":
        return _View(self.env, {(name,): self.values[name,] for name in names if strict or (name,) in self.values})

    def exclude(self, *names: str, inplace: bool = False) -> "_View":
        found = self if inplace else _View(self.env, dict(self.values))
        for name in names:
            found.values.pop((name,), None)
        return found


Translation: TypeAlias = Callable[[Any], Step | None]

_SINGLE = (
    *("ClipTransform", "DTypeCastTransform", "DoubleToFloat", "GrayScale", "ObservationNorm", "Resize", "RewardClipping"),
    *("RewardScaling", "SignTransform", "SqueezeTransform", "ToTensorImage", "UnsqueezeTransform"),
)
_WHOLE = ("CatTensors", "ExcludeTransform", "InitTracker", "RenameTransform", "SelectTransform", "TensorDictPrimer")

TRANSLATED: dict[str, tuple[Translation, str]] = {
    **dict.fromkeys(_SINGLE, (_each_value, "")),
    **dict.fromkeys(_WHOLE, (_by_its_own_step, "without `in_keys_inv`, `inverse`")),
    "CatFrames": (_by_its_own_step, ""),
    "NoopResetEnv": (_only_resets, ""),
    "RewardSum": (_summed, ""),
    "StepCounter": (_counted, ""),
    "VecNorm": (_by_its_own_step, "from the batch on that begins with statistics of all keys"),
    "VecNormV2": (_normalised, "stateful, of floats, with `decay` below 1, without `reduce_batch_dims`"),
}
"""The translation of a transform, and its conditions, by the name of TorchRL's class."""
