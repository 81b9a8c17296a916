"""Environments of TorchRL as functions from a step's values to those that follow it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rollfleet.data.tensor_tree import Key
from rollfleet.plain_tensors.known import Refused, check_own, check_version, flat_key
from rollfleet.plain_tensors.transforms import Values, steps_of
from rollfleet.plain_tensors.untranslated import Untranslated

Following: TypeAlias = Callable[[Values], Values]
"""Does what `_step` of an environment does: from the values of a step to those that follow it."""

_DONE: Key = ("done",)


@dataclass(frozen=True, slots=True)
class PlainEnv:
    """Steps an `EnvBase` as its `step_and_maybe_reset` does, up to the reset.

    Attributes:
        following: The step.
        rewards: Keys of rewards, and their shapes.
        dropped: First parts of keys that the next step's values lack.
        carried: Keys whose following values the next step begins with.
    """

    following: Following
    rewards: tuple[tuple[Key, torch.Size], ...]
    dropped: frozenset[str]
    carried: tuple[Key, ...]

    def step(self, values: Values) -> tuple[Values, Values, Tensor]:
        """Return what follows, the next step's values before a reset, and where episodes end, `[*batch size, 1]`."""
        following = self.following(values)
        for key, shape in self.rewards:
            if following[key].shape != shape:
                following[key] = following[key].view(shape)
        _keep_given(values, following)
        dropped = self.dropped
        after = {key: value for key, value in values.items() if key[0] not in dropped}
        for key in self.carried:
            after[key] = following[key]
        return following, after, following[_DONE]


def translate_env(env: Any) -> PlainEnv | Untranslated:
    """Read an environment as it is now. What it returns holds until the next change of the environment.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> env = GymEnv("CartPole-v1")
        >>> values = {(name,): value for name, value in env.rand_action(env.reset()).items()}
        >>> following, after, done = translate_env(env).step(values)
        >>> list(following)
        [('observation',), ('reward',), ('truncated',), ('done',), ('terminated',)]
    """
    if reason := check_version():
        return Untranslated(reason)
    try:
        following = _following(env)
        if not env._simple_done or env.run_type_checks or vars(env).get("_compiled_step_and_maybe_reset"):
            raise Refused("an environment that is compiled, checks types, or has no `done`")
        advance = env._step_mdp
        if any(value is not None for value in (*advance.exclude_from_root.values(), *advance.keys_from_next.values())):
            raise Refused("an environment with groups of keys")
        rewards = ((flat_key(key), env.full_reward_spec[key].shape) for key in env.reward_keys)
        return PlainEnv(
            following=following,
            rewards=tuple((key, shape) for key, shape in rewards if all(size > 0 for size in shape)),
            dropped=frozenset(advance.exclude_from_root),
            carried=tuple((name,) for name in advance.keys_from_next),
        )
    except Refused as refused:
        return Untranslated(str(refused))


def _following(env: Any) -> Following:
    from torchrl import envs

    translations = {
        "GymEnv": _gymnasium,
        "GymWrapper": _gymnasium,
        "SerialEnv": _in_turn,
        "TransformedEnv": _transformed,
    }
    name = type(env).__name__
    if name not in translations:
        raise Refused(f"environment {name}")
    check_own(env, getattr(envs, name), _OF_GYM if name.startswith("Gym") else ())
    if vars(env).get("_torchrl_native_autoreset"):
        raise Refused("an environment that resets itself")
    if torch.get_default_device().type != "cpu" or (env.device is not None and env.device.type != "cpu"):
        raise Refused("an environment, or a default device, that is not on the CPU")
    return translations[name](env)


_OF_GYM = frozenset(("_output_transform", "_reset_output_transform"))
"""Methods that TorchRL stores in each `GymWrapper` itself, for the installed version of Gymnasium."""


def _gymnasium(env: Any) -> Following:
    """Translate the `_step` of a `GymWrapper`, and the `_complete_done` that follows it."""
    from torchrl.data import Categorical, OneHot

    if env._is_batched or env.info_dict_reader or env.validated is False or len(env.action_keys) != 1:
        raise Refused("a GymWrapper of a vector, with an info reader, or with several actions")
    specs = {flat_key(key): spec for key, spec in env.observation_spec.items(True)}
    if any(hasattr(spec, "keys") or spec.dtype is None for spec in specs.values()) or not specs:
        raise Refused("observations in groups, or of text")
    encoders = {key: _encoder(spec) for key, spec in specs.items()}
    action, reward = flat_key(env.action_keys[0]), flat_key(env.reward_key)
    flags = [(flat_key(key), spec.shape) for key, spec in env.full_done_spec.items(True, True)]
    if {key for key, _ in flags} != {("done",), ("terminated",), ("truncated",)}:
        raise Refused("flags other than done, terminated and truncated")
    action_spec, reward_spec = env.full_action_spec[env.action_keys[0]], env.reward_spec
    encode_reward = _encoder(reward_spec)
    to_numpy = action_spec.to_numpy if env._convert_actions_to_numpy else None
    index = isinstance(action_spec, OneHot | Categorical)
    simulator, skips, parts, read_done = env._env, range(env.wrapper_frame_skip), env._output_transform, env.read_done

    def following(values: Values) -> Values:
        act: Any = values[action]
        if to_numpy is not None:
            act = to_numpy(act, safe=False)
            if index and act.size == 1:
                act = int(act)
        total: Any = 0
        for _ in skips:
            seen, gained, terminated, truncated, done, _info = parts(simulator.step(act))
            if gained is not None:
                total = total + gained
            if type(terminated) is type(truncated) is type(done) is bool:
                ends, (terminated, truncated, done) = done, map(_flag, (terminated, truncated, done))
            else:
                terminated, truncated, done, ends = read_done(terminated=terminated, truncated=truncated, done=done)
            if ends:
                break
        total = reward_spec.zero() if isinstance(total, int) and total == 0 else encode_reward(total)
        found = _observed(seen, encoders)
        found[reward] = total
        found[("truncated",)] = truncated
        found[_DONE] = done
        found[("terminated",)] = terminated
        for key, shape in flags:
            if found[key].shape != shape:
                found[key] = found[key].reshape(shape)
        return found

    return following


def _flag(value: bool) -> Tensor:
    return torch.from_numpy(np.array([value]))


def _encoder(spec: Any) -> Callable[[Any], Tensor]:
    """Return the `encode` of a spec, without its checks where an array or a number has the spec's form already."""
    encode, shape, single = spec.encode, spec.shape, spec.shape == (1,)
    kind = torch.empty(0, dtype=spec.dtype, device="cpu").numpy().dtype if _encodes_arrays(spec) else None

    def encoded(value: Any) -> Tensor:
        if type(value) is np.ndarray and value.dtype == kind and value.shape == shape and value.flags.carray:
            return torch.from_numpy(value)
        if single and kind is not None and isinstance(value, float):
            return torch.from_numpy(np.array([value], kind))
        found: Tensor = encode(value, ignore_device=True)
        return found

    return encoded


def _encodes_arrays(spec: Any) -> bool:
    from torchrl.data import tensor_specs

    usual = type(spec)._encode_eager is tensor_specs.TensorSpec._encode_eager
    return usual and spec.dtype is not torch.bfloat16 and not tensor_specs._CHECK_SPEC_ENCODE


def _observed(seen: Any, encoders: Mapping[Key, Callable[[Any], Tensor]]) -> Values:
    """Do what `read_obs` of a `GymWrapper` does."""
    if not isinstance(seen, Mapping):
        for key, encode in encoders.items():
            return {key: encode(seen)}
    if isinstance(seen, dict) and "state" in seen and "observation" not in seen:
        seen["observation"] = seen.pop("state")
    for name, value in seen.items():
        seen[name] = encoders[name,](value)  # type: ignore[index]
    return {(name,): value for name, value in seen.items()}


def _keep_given(values: Values, following: Values) -> None:
    """Add the values that the policy itself wrote under `next`, such as hidden states."""
    for key, value in values.items():
        if key[0] == "next" and key[1:] not in following:
            following[key[1:]] = value


def _transformed(env: Any) -> Following:
    """Translate the `_step` of a `TransformedEnv`."""
    inner = _following(env.base_env)
    both = [*steps_of(env.transform)]
    steps = [step for step, _ in both if step is not None]
    inverses = [inverse for _, inverse in reversed(both) if inverse is not None]

    def following(values: Values) -> Values:
        given = values
        if inverses:
            values = dict(values)
            for inverse in inverses:
                values = inverse(values, values)
        found = inner(values)
        _keep_given(given, found)
        for step in steps:
            found = step(values, found)
        return found

    return following


def _in_turn(env: Any) -> Following:
    """Translate the `_step` of a `SerialEnv`: each environment writes into the row that TorchRL keeps for it."""
    from tensordict import TensorDict

    if env.is_closed or not env._use_buffers or env._non_tensor_keys:
        raise Refused("a SerialEnv that is closed, or has no buffers")
    kept = env.shared_tensordict_parent.get("next")
    if type(kept) is not TensorDict or any(each.device != env.device for each in env._envs):
        raise Refused("a SerialEnv of different environments")
    steps = [_following(each) for each in env._envs]
    written = [flat_key(key) for key in env._env_output_keys]
    buffers = [((name,), value) for name, value in kept.items()]
    rows = [dict(zip(dict(buffers), each, strict=True)) for each in zip(*(value.unbind(0) for _, value in buffers), strict=True)]
    cloned = [(key, value) for key, value in buffers if key[0] in env._selected_step_keys]

    def following(values: Values) -> Values:
        parts = {key: value.unbind(0) for key, value in values.items()}
        for number, (step, row) in enumerate(zip(steps, rows, strict=True)):
            found = step({key: part[number] for key, part in parts.items()})
            for key in written:
                if key in found:
                    row[key].copy_(found[key])
        return {key: value.clone() for key, value in cloned}

    return following
