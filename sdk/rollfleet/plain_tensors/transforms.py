"""Transforms of TorchRL, which act on a step's values by their own code."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, as_tensor

from rollfleet.data.tensor_tree import Key, key_of
from rollfleet.plain_tensors.known import Untranslated, check_own

Values: TypeAlias = dict[Key, Tensor]
Following: TypeAlias = Callable[[Values], Values]
"""Does what `_step` of an environment does: from the values of a step to those that follow it."""


@dataclass(slots=True)
class _View:
    """Values in the place of a TensorDict, as far as the transforms below use one in a step."""

    env: Any
    values: Values

    device = property(lambda self: self.env.device)

    def numel(self) -> Any:
        return max(1, self.env.batch_size.numel())

    def keys(self, *_: Any, **__: Any) -> list[Any]:
        return [key if len(key) > 1 else key[0] for key in self.values]

    def get(self, name: Any, default: Any = None) -> Any:
        return self.values.get(name if type(name) is tuple else (name,), default)

    def set(self, name: Any, value: Any) -> None:
        if value is not None:  # a primer's, within a SerialEnv that does not carry it
            self.values[name if type(name) is tuple else (name,)] = as_tensor(value)

    def update(self, other: "_View") -> "_View":
        self.values.update(other.values)
        return self

    def rename_key_(self, name: Any, new: Any) -> None:
        if name != new:
            self.values[key_of(new)] = self.values.pop(key_of(name))

    def select(self, *names: Any, strict: bool) -> "_View":
        keys = [key_of(name) for name in names]
        return _View(self.env, {key: self.values[key] for key in keys if strict or key in self.values})

    def exclude(self, *names: Any, inplace: bool = False) -> "_View":
        found = self if inplace else _View(self.env, dict(self.values))
        for name in names:
            found.values.pop(key_of(name), None)
        return found


_Step: TypeAlias = Callable[[_View, _View], _View]
"""Takes the values of a step and those that follow it, and returns the latter, changed."""


def transformed(transform: Any, env: Any, inner: Following) -> Following:
    """Return the `_step` of a `TransformedEnv` of an environment, whose own is `inner`."""
    both = [*_steps_of(transform)]
    steps, inverses = [step for step, _ in both], [inverse for _, inverse in reversed(both)]

    def following(values: Values) -> Values:
        given = _View(env, dict(values))
        for inverse in inverses:
            given = inverse(given)
        found = _View(env, inner(given.values))
        keep_given(values, found.values)
        for step in steps:
            found = step(given, found)
        return found.values

    return following


def keep_given(values: Values, following: Values) -> None:
    """Add the values that the policy itself wrote under `next`, such as hidden states."""
    for key, value in values.items():
        if key[0] == "next" and key[1:] not in following:
            following[key[1:]] = value


def _steps_of(transform: Any) -> Iterator[tuple[_Step, Callable[[_View], _View]]]:
    """Yield for each transform of a chain what it does after a step and, to a copy of the values, before it."""
    if (name := check_own(transform, "transform", {"Compose", *TRANSLATED})) == "Compose":
        for part in transform.transforms:
            yield from _steps_of(part)
        return
    for attribute in ("in_keys", "out_keys", "excluded_keys", "selected_keys", "primers"):
        if any(isinstance(key, tuple) for key in getattr(transform, attribute, ())):
            raise Untranslated(f"{name} with keys in groups")
    if name == "StepCounter" and not transform.update_done:
        raise Untranslated("StepCounter without update_done")
    if name == "VecNorm":
        known = () if transform._td is None else transform._td.keys()
        if not {f"{key}_sum" for key in transform.in_keys} <= {*known}:
            raise Untranslated("VecNorm without statistics")
    yield _normalised(transform) if name == "VecNormV2" else transform._step, transform._inv_call


def _normalised(transform: Any) -> _Step:
    """Return what `VecNormV2` does, by the operations of TensorDict on each tensor."""
    if not transform.stateful or transform.reduce_batch_dims or transform._cast_int_to_float or transform.decay >= 1:
        raise Untranslated("VecNormV2 without state or decay, of integers, or with reduce_batch_dims")
    if not transform.initialized or transform._loc is None or transform.missing_tolerance:
        raise Untranslated("VecNormV2 without statistics")
    statistics = [
        (key, out, transform._loc.get(key), transform._var.get(key), transform._count.get(key))
        for key, out in zip(transform.in_keys, transform.out_keys, strict=True)
    ]
    frozen, eps, lock = transform.frozen, transform.eps, transform.lock
    weight, log_decay = 1 - transform.decay, math.log(transform.decay)

    def step(_: _View, following: _View) -> _View:
        found: Values = {}
        with lock:
            for key, out, loc, var, count in statistics:
                value = following.values[key,]
                if not frozen:
                    count += 1
                    loc.lerp_(value, weight)
                    var.lerp_(value.pow(2), weight)
                bias = (count * log_decay).exp().sub(1).neg().to(value.dtype)
                scale = var.sub(loc.pow(2)).div(bias).sqrt().clamp_min(eps)
                found[out,] = value.sub(loc.div(bias)).div(scale)
        following.values.update(found)
        return following

    return step


_PLAINLY = (
    *("BinarizeReward", "CatFrames", "CatTensors", "ClipTransform", "DTypeCastTransform", "DoubleToFloat"),
    *("EndOfLifeTransform", "ExcludeTransform", "GrayScale", "InitTracker", "NoopResetEnv", "ObservationNorm"),
    *("RNDTransform", "RenameTransform", "Resize", "RewardClipping", "RewardScaling", "RewardSum", "SelectTransform"),
    *("SignTransform", "SqueezeTransform", "StepCounter", "TargetReturn", "TensorDictPrimer", "TimeMaxPool"),
    *("ToTensorImage", "TrajCounter", "UnsqueezeTransform"),
)

TRANSLATED = dict.fromkeys(_PLAINLY, "") | {
    "VecNorm": "from the first batch on that begins with statistics of all `in_keys`",
    "VecNormV2": "stateful, of floats, with `decay` below 1, without `reduce_batch_dims`",
}
"""Conditions by the name of TorchRL's class; in a step none of these calls more of a TensorDict than `_View` has."""
