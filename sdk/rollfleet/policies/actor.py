"""A policy of any kind, called once a step for all environments: tensors in, arrays out.

The keys, dtypes and shapes of a policy's outputs are learned and checked at the first call of a fragment, not at every
step.
"""

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from operator import itemgetter
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from rollfleet.data.batch import ACTION, LOG_PROB, RESERVED, Key
from rollfleet.data.tensor_memory import Array, as_array
from rollfleet.envs.space_tree import Space, SpaceTree, array_dtype, array_shape
from rollfleet.envs.spaces import action_keys, described, observation_keys, tensor_dtype
from rollfleet.errors import PolicyInvalid
from rollfleet.exploration import exploration
from rollfleet.policies.fast_mlp import FastMlp, fast
from rollfleet.policies.recurrence import RECURRENT, Call, HiddenState, RecurrentCall, TensorDictCall
from rollfleet.policies.tensordict_mode import interacting

Policy: TypeAlias = Callable[..., object]
"""Maps observations [envs, ...] to actions [envs, ...], or to a dict or TensorDict with `action` and other outputs for
the batch, each [envs, ...].

Observations are a tensor; for Dict and Tuple spaces dicts and tuples of tensors. Actions are elements of the action
space: int64 for Discrete, `start` included; for Dict and Tuple spaces a dict or tuple under `action`. A
`TensorDictModule` reads and writes by its keys instead.

A policy with `initial_state(num_envs)` is recurrent. Its initial state is a tensor [num_envs, ...] or a dict of them.
It is called as `policy(observation, state)` and returns a pair: the above, and the next state."""

_TAKEN = {*RESERVED[1:], "observation", RECURRENT}  # keys that a policy may not write; "action" is its own


class Actor:
    """Calls a policy on its own preallocated input.

    Attributes:
        keys: Keys of the policy's outputs, the action's leaves first; empty before the first call.
        carried_keys: Keys of values carried to the next step: leaves of the observation, then of the hidden state.
        carried: An array [envs, ...] for each of them. Write the policy's next input here, or call `advance`.
        plain: Whether the only carried value is an observation of one array.
        device: The device of the policy's parameters.
        reads_starts: Whether the policy reads `is_init`.
    """

    def __init__(self, policy: Policy, spaces: tuple[Space, Space], num_envs: int, starts: Callable[[], Array]) -> None:
        """Keep the policy; it is not called yet.

        Args:
            policy: See `Policy`.
            spaces: The observation and the action space of a single environment.
            num_envs: The number of environments.
            starts: Returns bool [envs]: which environments are at the first frame of an episode.

        Raises:
            PolicyInvalid: The policy is not callable.
        """
        if not callable(policy):
            raise PolicyInvalid(f"a policy must be callable with an observation tensor, not a {type(policy).__name__}")
        self.observations, self.actions = (SpaceTree(space) for space in spaces)
        self.keys: tuple[Key, ...] = ()
        self.carried_keys: tuple[Key, ...] = tuple(observation_keys(self.observations))
        self.carried: list[Array] = [
            np.zeros((num_envs, *array_shape(leaf)), array_dtype(leaf)) for leaf in self.observations.leaves.values()
        ]
        self.device = _device(policy)
        self.action_of: Callable[[list[Array]], Any] = itemgetter(0) if self.actions.plain else self.actions.join
        self._inputs = [torch.from_numpy(array) for array in self.carried]
        self.plain = self.observations.plain
        self._simple = self.plain and self.device.type == "cpu"
        self._policy = policy
        self._num_envs = num_envs
        self._action_keys = action_keys(self.actions)
        self._casts: list[tuple[int, np.dtype[Any]]] = []  # actions whose dtype differs from the space's
        self._layout: dict[Key, tuple[torch.dtype, tuple[int, ...]]] = {}
        self._plain_keys: list[object] | None = None  # keys of the policy's dict, in the order of `keys`
        self._order: tuple[Key, ...] = ()  # `keys`, then those of the next state
        self._hidden: HiddenState | None = None
        self._special: Call | None = None
        self._is_tensordict_module = _is_tensordict_module(policy)
        self._fast = fast(policy, spaces, num_envs)
        self._quick: FastMlp | None = None  # the same, during a fragment that it acts in
        self.reads_starts = False
        if self._is_tensordict_module:
            module = TensorDictCall(policy, self.observations, num_envs, starts)
            self._special, self.reads_starts = module, module.reads_starts
        elif hasattr(policy, "initial_state"):
            self._special = RecurrentCall(policy, num_envs)

    def acting(self) -> AbstractContextManager[object]:
        """Return the context for calls: no gradients, and `exploration()` applies to TensorDict's modules."""
        stack = ExitStack()
        # A plain callable may keep tensors (a hidden state), which would be unusable outside of inference mode.
        stack.enter_context(torch.inference_mode() if isinstance(self._policy, nn.Module) else torch.no_grad())
        stack.enter_context(interacting(exploration()) if self._is_tensordict_module else nullcontext())
        return stack

    def first(self, *, quickly: bool = True) -> list[Array]:
        """Start a fragment: act as in `__call__`, and learn or check the outputs' keys, dtypes and shapes.

        Args:
            quickly: Allow a fast form of the policy.

        Raises:
            PolicyInvalid: The action is missing, or has a wrong shape or dtype; or the outputs differ from those of
                earlier fragments. Also if the very first call fails: a policy that has never worked is not retried.
        """
        if self._fast is not None and not self._layout:
            with torch.random.fork_rng(devices=[]):  # the policy may be called again below
                self._learn(self._very_first())
        self._quick = self._fast if quickly and self._fast is not None and self._fast.begin() else None
        if self._quick is not None:
            return self()
        return self._learn(self._call() if self._layout else self._very_first())

    def _learn(self, output: object) -> list[Array]:
        flat = dict(self._flat(output))
        self._check_action(flat)
        layout = {key: (value.dtype, tuple(value.shape)) for key, value in flat.items()}
        if self._layout and layout != self._layout:
            raise PolicyInvalid(f"the policy first returned {_listed(self._layout)}, and now {_listed(layout)}")
        for key, (_, shape) in layout.items():
            if shape[:1] != (self._num_envs,):
                raise PolicyInvalid(
                    f"{_name(key)} of the policy has shape {list(shape)}; expected [{self._num_envs}, ...]"
                )
        self._check_next_state(layout)
        self._layout = layout
        following = self._special.next_keys if self._special else ()
        extras = (key for key in flat if key not in following and key[:1] != ACTION)
        self.keys = (*self._action_keys, *extras)
        self._order = (*self.keys, *following)
        self._plain_keys = None
        if type(output) is dict and all(isinstance(value, Tensor) for value in output.values()):
            originals = {_key(original): original for original in output}
            self._plain_keys = [originals[key] for key in self._order]
        arrays = [as_array(flat[key]) for key in self._order]
        dtypes = [array_dtype(leaf) for leaf in self.actions.leaves.values()]
        self._casts = [(i, dtype) for i, dtype in enumerate(dtypes) if arrays[i].dtype != dtype]
        return self._cast(arrays)

    def __call__(self) -> list[Array]:
        """Call the policy, and return its outputs in the order of `keys`, then its next state.

        The arrays are valid until the next call. Actions have their space's dtype. bfloat16, unknown to numpy, becomes
        int16 with the same bits. A fast form of the policy returns only actions; see `rest`.
        """
        if self._quick is not None:
            return [self._quick.act(self.carried[0])]
        output = self._call()
        if isinstance(output, Tensor):
            values = [output]
        elif self._plain_keys is not None and type(output) is dict:
            values = [output[key] for key in self._plain_keys]
        else:
            flat = dict(self._flat(output))
            values = [flat[key] for key in self._order]
        return self._cast(
            [
                value.numpy(force=True)
                if value.dtype is not torch.bfloat16
                else value.view(torch.int16).numpy(force=True)
                for value in values
            ]
        )

    def rest(self) -> list[tuple[Key, Array]]:
        """Return outputs that calls since `first` omitted, [steps, envs, ...] by key. Call it once, after the steps."""
        return [] if self._quick is None else list(zip(self.keys[1:], self._quick.rest(), strict=True))

    def advance(self, observation: Any, values: Sequence[Array]) -> None:
        """Carry the environments' `observation`, and the next state in `values`, to the next step."""
        own = len(self.keys)
        for array, new in zip(self.carried, (*self.observations.split(observation), *values[own:]), strict=True):
            array[...] = new

    def restart(self, envs: Array | slice, observation: Any = None) -> None:
        """Start episodes in `envs`.

        Args:
            envs: The environments.
            observation: First observations, [envs, ...] of all environments; None: they are in `carried` already.
        """
        if observation is not None and self.plain:
            self.carried[0][envs] = observation[envs]
        elif observation is not None:
            for array, new in zip(self.carried, self.observations.split(observation), strict=False):
                array[envs] = new[envs]
        if self._hidden is not None:
            self._hidden.restart(envs)

    def layout(self) -> dict[Key, tuple[torch.dtype, tuple[int, ...]]]:
        """Return the dtype and the shape in one environment of each stored value, by `carried_keys` and `keys`."""
        carried = (*self._inputs, *(self._hidden.tensors if self._hidden else ()))
        stored = {
            key: (value.dtype, tuple(value.shape[1:])) for key, value in zip(self.carried_keys, carried, strict=True)
        }
        stored |= {key: (self._layout[key][0], self._layout[key][1][1:]) for key in self.keys}
        for key, leaf in zip(self._action_keys, self.actions.leaves.values(), strict=True):
            stored[key] = (tensor_dtype(leaf), array_shape(leaf))
        return stored

    def _very_first(self) -> object:
        try:
            if self._special is not None and self._hidden is None:
                self._hidden = HiddenState(self._special.initial(), self._num_envs, self.device)
                self.carried_keys += self._hidden.keys
                self.carried += self._hidden.arrays
                self.plain = self.plain and not self._hidden.arrays
            return self._call()
        except (torch.OutOfMemoryError, PolicyInvalid):  # another process may have used the memory: retry later
            raise
        except Exception as error:
            seen = ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for tensor in self._inputs)
            raise PolicyInvalid(
                f"the policy failed at its first call, with an observation {seen}:\n"
                f"{''.join(traceback.format_exception(error)).rstrip()}"
            ) from error

    def _call(self) -> object:
        if self._special is None:
            return self._policy(self._inputs[0] if self._simple else self._observed())
        assert self._hidden is not None
        return self._special(self._observed(), self._hidden)

    def _observed(self) -> Any:
        return self.observations.join(
            [tensor if self.device.type == "cpu" else tensor.to(self.device) for tensor in self._inputs]
        )

    def _cast(self, arrays: list[Array]) -> list[Array]:
        for index, dtype in self._casts:
            arrays[index] = arrays[index].astype(dtype)
        return arrays

    def _check_action(self, flat: dict[Key, Tensor]) -> None:
        if surplus := [key for key in flat if key[:1] == ACTION and key not in self._action_keys]:
            expected = ", ".join(_name(key) for key in self._action_keys)
            raise PolicyInvalid(f"the policy returned {_name(surplus[0])}; the action space has {expected}")
        for key, leaf in zip(self._action_keys, self.actions.leaves.values(), strict=True):
            expected = described(leaf, self._num_envs)
            action = flat.get(key)
            if action is None:
                names = ", ".join(_name(other) for other in flat) or "nothing"
                raise PolicyInvalid(f"the policy returned {names}, but no {_name(key)}; expected one of {expected}")
            what = "action" if key == ACTION else _name(key)
            if tuple(action.shape) != (self._num_envs, *array_shape(leaf)):
                raise PolicyInvalid(f"the policy's {what} has shape {list(action.shape)}; expected {expected}")
            kind = array_dtype(leaf).kind
            fits = action.dtype is torch.bool if kind == "b" else action.dtype is not torch.bool
            if not fits or action.dtype.is_complex or action.dtype.is_floating_point is not (kind == "f"):
                raise PolicyInvalid(f"the policy's {what} has dtype {action.dtype}; expected {expected}")
        if LOG_PROB in flat and flat[LOG_PROB].shape != (self._num_envs,):
            raise PolicyInvalid(
                f"action_log_prob has shape {list(flat[LOG_PROB].shape)}; expected [{self._num_envs}]: one number for "
                "the whole action (sum over its dimensions)"
            )

    def _check_next_state(self, layout: Mapping[Key, tuple[torch.dtype, tuple[int, ...]]]) -> None:
        if self._special is None or self._hidden is None:
            return
        for key, now in zip(self._special.next_keys, self._hidden.tensors, strict=True):
            if layout[key] != (now.dtype, tuple(now.shape)):
                raise PolicyInvalid(
                    f"the policy's next state {key[-1]!r} is {layout[key][0]} {list(layout[key][1])}; expected "
                    f"{now.dtype} {list(now.shape)}, as at the start"
                )

    def _flat(self, output: object, prefix: Key = ()) -> Iterator[tuple[Key, Tensor]]:
        if isinstance(output, Tensor):
            yield ACTION, output
            return
        if not _is_mapping(output):
            raise PolicyInvalid(
                f"the policy returned a {type(output).__name__}; return a tensor of actions, or a dict or TensorDict "
                "with 'action'"
            )
        for name, value in output.items():
            key = prefix + _key(name)
            if isinstance(value, tuple | list):
                value = {str(index): inner for index, inner in enumerate(value)}
            if _is_mapping(value):
                yield from self._flat(value, key)
            elif hasattr(output, "batch_size") and key in self.carried_keys:
                continue  # the policy's own input, in the TensorDict that it filled
            elif self._special is not None and key in self._special.next_keys:
                yield key, value  # type: ignore[misc]
            elif key[0] in _TAKEN or key in self.carried_keys:
                raise PolicyInvalid(f"the policy returned {key[0]!r}, which is reserved in a batch; use another name")
            elif isinstance(value, Tensor):
                yield key, value
            else:
                raise PolicyInvalid(f"{_name(key)} of the policy is a {type(value).__name__}; expected a tensor")


def _is_mapping(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, Mapping) or (hasattr(value, "batch_size") and hasattr(value, "items"))


def _key(name: object) -> Key:
    parts = name if isinstance(name, tuple) else (name,)
    if not parts or not all(isinstance(part, str) for part in parts):
        raise PolicyInvalid(f"the policy returned key {name!r}; keys are strings, or tuples of strings where nested")
    return parts


def _name(key: Key) -> str:
    return repr(key[0] if len(key) == 1 else key)


def _listed(layout: Mapping[Key, tuple[torch.dtype, tuple[int, ...]]]) -> str:
    return ", ".join(f"{_name(key)} {dtype} {list(shape)}" for key, (dtype, shape) in sorted(layout.items()))


def _device(policy: object) -> torch.device:
    if isinstance(policy, nn.Module):
        for tensor in (*policy.parameters(), *policy.buffers()):
            return tensor.device
    return torch.device("cpu")


def _is_tensordict_module(policy: object) -> bool:
    # A policy that is one has imported tensordict. Other programs need not pay for the import.
    module = sys.modules.get("tensordict.nn")
    return module is not None and isinstance(policy, module.TensorDictModuleBase)
