"""Policies that carry a hidden state from one step to the next, and the seam for both ways to write them.

A batch has the state before a step beside the observation, and the state after it in `next`. So a sequence can be
replayed from any frame. An episode starts with the initial state.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from rollfleet.data.batch import Key
from rollfleet.data.tensor_memory import Array, as_array
from rollfleet.errors import PolicyInvalid

RECURRENT = "recurrent"
ONE_STATE = "state"  # the name of a state that is a single tensor


class HiddenState:
    """The hidden state of a policy for each environment.

    Attributes:
        keys: Its keys in a batch.
        arrays: One array [envs, ...] per key; bfloat16 as int16.
        tensors: The same memory as tensors.
    """

    def __init__(self, initial: Mapping[Key, Tensor], num_envs: int, device: torch.device) -> None:
        """Start an episode in every environment.

        Raises:
            PolicyInvalid: The initial state is not a tensor [num_envs, ...].
        """
        for key, value in initial.items():
            if not isinstance(value, Tensor) or value.shape[:1] != (num_envs,):
                found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise PolicyInvalid(
                    f"the initial state {key[-1]!r} of the policy is {found}; expected [{num_envs}, ...]"
                )
        self.keys = tuple(initial)
        self.tensors = [value.detach().cpu().clone(memory_format=torch.contiguous_format) for value in initial.values()]
        self.arrays = [as_array(tensor) for tensor in self.tensors]
        self._initial = [array.copy() for array in self.arrays]
        self._device = device

    def copies(self) -> dict[Key, Tensor]:
        """Return copies on the policy's device, which it may overwrite."""
        return {key: tensor.to(self._device, copy=True) for key, tensor in zip(self.keys, self.tensors, strict=True)}

    def restart(self, envs: Array | slice) -> None:
        """Start episodes in `envs`, with the initial state."""
        for array, initial in zip(self.arrays, self._initial, strict=True):
            array[envs] = initial[envs]


class Call(Protocol):
    """The seam for policies that take more than the observation: recurrent ones, and those that take a TensorDict."""

    next_keys: tuple[Key, ...]

    def initial(self) -> dict[Key, Tensor]:
        """Return the hidden state at the start of an episode, by its key in a batch."""

    def __call__(self, observation: Any, hidden: HiddenState) -> dict[Any, Any]:
        """Return the policy's outputs, and its next state under `next_keys`."""


class RecurrentCall:
    """A policy with `initial_state(num_envs)`, called as `output, next_state = policy(observation, state)`."""

    def __init__(self, policy: Any, num_envs: int) -> None:
        self._policy, self._num_envs = policy, num_envs
        self._kind: type = dict
        self.next_keys: tuple[Key, ...] = ()

    def initial(self) -> dict[Key, Tensor]:
        """Return the tensors of `initial_state`.

        Raises:
            PolicyInvalid: It returns neither a tensor nor a dict or tuple of them.
        """
        state = self._policy.initial_state(self._num_envs)
        for kind in (Tensor, tuple, dict):
            if isinstance(state, kind):
                self._kind = kind
        if not isinstance(state, Tensor | tuple | dict) or not len(state):
            raise PolicyInvalid(
                f"initial_state of the policy returned a {type(state).__name__}; return a tensor [num_envs, ...] or a "
                "dict or tuple of them"
            )
        named: dict[str, Tensor] = self._named(state)
        self.next_keys = tuple(("next", RECURRENT, name) for name in named)
        return {(RECURRENT, name): value for name, value in named.items()}

    def __call__(self, observation: Any, hidden: HiddenState) -> dict[Any, Any]:
        """Call the policy, and check that it returns a pair.

        Raises:
            PolicyInvalid: It does not, or the next state differs in names from the initial one.
        """
        state: Any = {key[-1]: value for key, value in hidden.copies().items()}
        if self._kind is not dict:
            state = state[ONE_STATE] if self._kind is Tensor else tuple(state.values())
        returned = self._policy(observation, state)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise PolicyInvalid(
                f"a policy with initial_state must return a pair (output, next state), not a {type(returned).__name__}"
            )
        output, following = returned
        if not isinstance(output, Tensor) and not hasattr(output, "items"):
            raise PolicyInvalid(
                f"the policy returned a {type(output).__name__} beside its next state; return a tensor of actions, or "
                "a dict or TensorDict such as {'action': action, 'action_log_prob': log_prob}"
            )
        following, names = self._named(following), [key[-1] for key in hidden.keys]
        if not isinstance(following, Mapping) or following.keys() != {*names}:
            found = sorted(following) if isinstance(following, Mapping) else type(following).__name__
            raise PolicyInvalid(f"the next state of the policy is {found}; expected {sorted(names)}")
        own = {"action": output} if isinstance(output, Tensor) else dict(output.items())
        return own | {("next", RECURRENT, name): value for name, value in following.items()}

    def _named(self, state: Any) -> Any:
        """Return a state as a dict of tensors; those of a tuple are named 0, 1, ..."""
        if self._kind is Tensor:
            return {ONE_STATE: state}
        if self._kind is tuple and isinstance(state, tuple | list):
            return {str(index): value for index, value in enumerate(state)}
        return state
