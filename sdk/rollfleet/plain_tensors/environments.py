"""Environments of TorchRL as functions from a step's values to those that follow it."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rollfleet.data.tensor_tree import key_of
from rollfleet.plain_tensors.known import Untranslated, changed, check_own, look_again
from rollfleet.plain_tensors.transforms import Following, Values, keep_given, transformed

Step: TypeAlias = Callable[[Values], tuple[Values, Values]]
"""Returns what follows the values of a step, and the next step's values before a reset."""


def translate_env(env: Any) -> Step | Untranslated:
    """Read an environment as it is now, for one batch; or return what keeps it from being translated."""
    try:
        if torch.get_default_device().type != "cpu":
            raise Untranslated("the default device")
        look_again()
        inner = _following(env)
        if not env._simple_done or env.run_type_checks or vars(env).get("_compiled_step_and_maybe_reset"):
            raise Untranslated("an environment that is compiled, checks types, or has no `done`")
        dropped, from_next = env._step_mdp.exclude_from_root, env._step_mdp.keys_from_next
        if any(group is not None for group in (*dropped.values(), *from_next.values())):
            raise Untranslated("an environment with groups of keys")
        if type(env).__name__ == "ParallelEnv":  # its processes carry on, too
            raise Untranslated("a ParallelEnv without transforms around it")
    except Untranslated as kept:
        return kept
    rewards = [(key_of(key), env.full_reward_spec[key].shape) for key in env.reward_keys]
    carried = [(name,) for name in from_next]

    def step(values: Values) -> tuple[Values, Values]:
        following = inner(values)
        for key, shape in rewards:
            if following[key].shape != shape:
                following[key] = following[key].view(shape)
        keep_given(values, following)
        after = {key: value for key, value in values.items() if key[0] not in dropped}
        return following, after | {key: following[key] for key in carried}

    return step


def reset_of(env: Any) -> Callable[[Values], Values] | None:
    """Return what resets a single simulator whose transforms write the same at each reset; None: it is another."""
    base, chain = (env.base_env, [env.transform]) if type(env).__name__ == "TransformedEnv" else (env, [])
    written = dict.fromkeys(base.done_keys, 0)
    for part in chain and getattr(chain[0], "transforms", chain):
        keys, value = CONSTANT.get(type(part).__name__, ("", None))
        limit = getattr(part, "max_steps", None)
        if value is None or (limit is not None and limit < 1):
            return None
        written |= dict.fromkeys(getattr(part, keys), value)
    if TRANSLATED[type(base).__name__] is not _gymnasium or {*env.done_keys} != {*base.done_keys}:
        return None
    constants = [(key_of(key), value) for key, value in written.items()]

    def reset(values: Values) -> Values:
        seen, _info = base._reset_output_transform(base._env.reset())
        found: Values = {(name,): value for name, value in base.read_obs(seen).items()}
        return values | found | {key: torch.full_like(values[key], value) for key, value in constants}

    return reset


def _following(env: Any) -> Following:
    name = check_own(env, "environment", TRANSLATED, ("_collector", "_output_transform", "_reset_output_transform"))
    if vars(env).get("_torchrl_native_autoreset") or (env.device is not None and env.device.type != "cpu"):
        raise Untranslated("an environment that resets itself, or is not on the CPU")
    return TRANSLATED[name](env)


def _gymnasium(env: Any) -> Following:
    """Translate the `_step` of a `GymWrapper`, and the `_complete_done` that follows it."""
    from torchrl.data import Categorical, OneHot

    if env._is_batched or env.info_dict_reader or env.validated is False or len(env.action_keys) != 1:
        raise Untranslated("a GymWrapper of a vector, with an info reader, or with several actions")
    specs = [*env.observation_spec.items()]
    if not specs or any(hasattr(spec, "keys") or spec.dtype is None for _, spec in specs):
        raise Untranslated("observations in groups, or of text")
    if {*env.done_keys} != {"done", "terminated", "truncated"}:
        raise Untranslated("flags other than done, terminated and truncated")
    action, first, reward = key_of(env.action_keys[0]), specs[0][0], key_of(env.reward_key)
    action_spec, reward_spec = env.full_action_spec[env.action_keys[0]], env.reward_spec
    encode, encode_reward = _encoder(specs[0][1]), _encoder(reward_spec)
    index = isinstance(action_spec, OneHot | Categorical)
    simulator, skips, parts, read_obs = env._env, range(env.wrapper_frame_skip), env._output_transform, env.read_obs
    reads, to_numpy, read_done = env._convert_actions_to_numpy, action_spec.to_numpy, env.read_done

    def following(values: Values) -> Values:
        act: Any = values[action]
        if reads:
            act = to_numpy(act, safe=False)
            if index and act.size == 1:
                act = int(act)
        total: Any = 0
        for _ in skips:
            seen, gained, terminated, truncated, done, _info = parts(simulator.step(act))
            if gained is not None:
                total = total + gained
            if type(terminated) is type(truncated) is type(done) is bool:
                ends, flags = done, [torch.from_numpy(np.array([flag])) for flag in (truncated, done, terminated)]
            else:
                *three, ends = read_done(terminated=terminated, truncated=truncated, done=done)
                flags = [three[number].reshape(1) for number in (1, 2, 0)]
            if ends:
                break
        total = reward_spec.zero() if isinstance(total, int) and total == 0 else encode_reward(total)
        read = read_obs(seen) if isinstance(seen, Mapping) else {first: encode(seen)}
        found: Values = {(name,): value for name, value in read.items()}
        found[reward] = total
        found["truncated",], found["done",], found["terminated",] = flags
        return found

    return following


def _encoder(spec: Any) -> Callable[[Any], Tensor]:
    """Return the `encode` of a spec, without its checks where an array or a number has the spec's form already."""
    from torchrl.data import tensor_specs

    encode, shape, kind = spec.encode, spec.shape, None
    eager = type(spec)._encode_eager is tensor_specs.TensorSpec._encode_eager and encode == spec._encode_eager
    if eager and not changed(spec, ("encode",)) and not tensor_specs._CHECK_SPEC_ENCODE:
        kind = torch.empty(0, dtype=spec.dtype).numpy().dtype

    def encoded(value: Any) -> Tensor:
        if type(value) is np.ndarray and value.dtype == kind and value.shape == shape and value.flags.carray:
            return torch.from_numpy(value)
        if isinstance(value, float) and kind is not None and shape == (1,):
            return torch.from_numpy(np.array([value], kind))
        return encode(value, ignore_device=True)  # type: ignore[no-any-return]

    return encoded


def _buffers(env: Any) -> Values:
    """Return where the environments of a batch write what follows a step: TorchRL keeps a row for each."""
    from tensordict import TensorDict

    if env.is_closed or not env._use_buffers or env._non_tensor_keys:
        raise Untranslated("a batch of environments that is closed, or has no buffers")
    kept = env.shared_tensordict_parent.get("next")
    alike = all(each.device == env.device for each in vars(env).get("_envs", ()))
    if type(kept) is not TensorDict or not alike or any(isinstance(key, tuple) for key in env._env_output_keys):
        raise Untranslated("a batch of different environments, or with groups of keys")
    return {(name,): value for name, value in kept.items() if name in env._selected_step_keys}


def _in_turn(env: Any) -> Following:
    """Translate the `_step` of a `SerialEnv`."""
    buffers, steps = _buffers(env), [_following(each) for each in env._envs]
    rows = [{key: value[number] for key, value in buffers.items()} for number in range(len(steps))]

    def following(values: Values) -> Values:
        parts = {key: value.unbind(0) for key, value in values.items()}
        for number, (step, row) in enumerate(zip(steps, rows, strict=True)):
            found = step({key: part[number] for key, part in parts.items()})
            for key in row.keys() & found.keys():
                row[key].copy_(found[key])
        return {key: value.clone() for key, value in buffers.items()}

    return following


def _in_processes(env: Any) -> Following:
    """Translate the `_step` of a `ParallelEnv`. What its processes do stays TorchRL's own."""
    buffers, channels, workers = _buffers(env), env.parent_channels, range(env.num_workers)
    inputs = [(key_of(key), env.shared_tensordict_parent[key]) for key in env._env_input_keys]
    inputs += [(("next", *key), value) for key, value in buffers.items()]

    def following(values: Values) -> Values:
        for key, buffer in inputs:
            if key in values:
                buffer.copy_(values[key])
        preset = [name for (name,) in buffers if ("next", name) in values]
        for channel in channels:
            channel.send(("step", {"next_td_passthrough_keys": preset} if preset else {}))
        env._wait_for_workers(workers)
        return {key: value.clone() for key, value in buffers.items()}

    return following


CONSTANT = {"InitTracker": ("init_keys", 1), "RewardSum": ("out_keys", 0), "StepCounter": ("step_count_keys", 0)}
"""The keys that a transform writes at a reset, and their value."""

TRANSLATED = {"GymEnv": _gymnasium, "GymWrapper": _gymnasium, "ParallelEnv": _in_processes, "SerialEnv": _in_turn}
TRANSLATED["TransformedEnv"] = lambda env: transformed(env.transform, env.base_env, _following(env.base_env))
