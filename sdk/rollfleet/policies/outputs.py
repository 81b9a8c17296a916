"""The outputs of a policy: their keys, and the checks of its action."""

from collections.abc import Collection, Iterator, Mapping
from typing import TypeGuard

import torch
from torch import Tensor

from rollfleet.data.batch import ACTION, LOG_PROB, RESERVED, Key
from rollfleet.envs.space_tree import SpaceTree, array_dtype, array_shape
from rollfleet.envs.spaces import action_keys, described
from rollfleet.errors import PolicyInvalid
from rollfleet.policies.recurrence import RECURRENT

_TAKEN = {*RESERVED[1:], "observation", RECURRENT}  # keys that a policy may not write; "action" is its own


def flattened(
    output: object, inputs: Collection[Key], states: Collection[Key], prefix: Key = ()
) -> Iterator[tuple[Key, Tensor]]:
    """Yield the tensors that a policy returned, by key, without private ones.

    Args:
        output: The policy's return value.
        inputs: Keys of the policy's inputs, which a TensorDict may hold too.
        states: Keys of the policy's next state.
        prefix: The key of the group that `output` is.

    Raises:
        PolicyInvalid: It has a reserved key, or a value that is not a tensor.
    """
    if isinstance(output, Tensor):
        yield ACTION, output
        return
    if not _is_mapping(output):
        raise PolicyInvalid(
            f"the policy returned a {type(output).__name__}; return a tensor of actions, or a dict or TensorDict such "
            "as {'action': action, 'action_log_prob': log_prob}"
        )
    for name, value in output.items():
        key = prefix + key_of(name)
        if key not in states and is_private(key):
            continue
        if isinstance(value, tuple | list):
            value = {str(index): inner for index, inner in enumerate(value)}
        if _is_mapping(value):
            yield from flattened(value, inputs, states, key)
        elif hasattr(output, "batch_size") and key in inputs:
            continue  # the policy's own input, in the TensorDict that it filled
        elif key in states and hasattr(value, "dtype"):
            yield key, value  # type: ignore[misc]
        elif key not in states and (key[0] in _TAKEN or key in inputs):
            raise PolicyInvalid(f"the policy returned {key[0]!r}, which is reserved in a batch; use another name")
        elif isinstance(value, Tensor):
            yield key, value
        else:
            raise PolicyInvalid(f"{shown(key)} of the policy is a {type(value).__name__}; expected a tensor")


def check_action(flat: Mapping[Key, Tensor], actions: SpaceTree, num_envs: int) -> None:
    """Check the action in a policy's outputs, and its log-probability if there is one.

    Raises:
        PolicyInvalid: The action is missing, or does not fit the action space.
    """
    keys = action_keys(actions)
    if surplus := [key for key in flat if key[:1] == ACTION and key not in keys]:
        expected = ", ".join(shown(key) for key in keys)
        raise PolicyInvalid(f"the policy returned {shown(surplus[0])}; the action space has {expected}")
    for key, leaf in zip(keys, actions.leaves.values(), strict=True):
        expected = described(leaf, num_envs)
        action = flat.get(key)
        if action is None:
            names = ", ".join(shown(other) for other in flat) or "nothing"
            raise PolicyInvalid(f"the policy returned {names}, but no {shown(key)}; expected one of {expected}")
        what = "action" if key == ACTION else shown(key)
        if tuple(action.shape) != (num_envs, *array_shape(leaf)):
            raise PolicyInvalid(f"the policy's {what} has shape {list(action.shape)}; expected {expected}")
        kind = array_dtype(leaf).kind
        fits = action.dtype is torch.bool if kind == "b" else action.dtype is not torch.bool
        if not fits or action.dtype.is_complex or action.dtype.is_floating_point is not (kind == "f"):
            raise PolicyInvalid(f"the policy's {what} has dtype {action.dtype}; expected {expected}")
    if LOG_PROB in flat and flat[LOG_PROB].shape != (num_envs,):
        raise PolicyInvalid(
            f"action_log_prob has shape {list(flat[LOG_PROB].shape)}; expected [{num_envs}]: one number for "
            "the whole action (sum over its dimensions)"
        )


def key_of(name: object) -> Key:
    """Return the key of a name in a dict or a TensorDict.

    Raises:
        PolicyInvalid: It is neither a string nor a tuple of strings.
    """
    parts = name if isinstance(name, tuple) else (name,)
    if not parts or not all(isinstance(part, str) for part in parts):
        raise PolicyInvalid(f"the policy returned key {name!r}; keys are strings, or tuples of strings where nested")
    return parts


def is_private(key: Key) -> bool:
    """Whether a key stays out of batches, as in TorchRL: a part of it begins with an underscore."""
    return any(part.startswith("_") for part in key)


def shown(key: Key) -> str:
    """Return a key as users write it."""
    return repr(key[0] if len(key) == 1 else key)


def _is_mapping(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, Mapping) or (hasattr(value, "batch_size") and hasattr(value, "items"))
