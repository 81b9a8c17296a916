"""Policies that carry a hidden state from one step to the next, in the two ways in which they are written.

A batch has the state before a step beside the observation, and the state after it in `next`. So a sequence can be
replayed from any frame. An episode starts with the initial state.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rollfleet.data.batch import IS_INIT, Key, nested
from rollfleet.data.tensor_memory import Array, as_array
from rollfleet.envs.space_tree import SpaceTree
from rollfleet.envs.spaces import observation_keys
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
    """The seam for policies that take more than the observation: recurrent policies and TensorDictModules."""

    next_keys: tuple[Key, ...]

    def initial(self) -> dict[Key, Tensor]:
        """Return the hidden state at the start of an episode, by its key in a batch."""
        ...

    def __call__(self, observation: Any, hidden: HiddenState) -> dict[Any, Any]:
        """Return the policy's outputs, and its next state under `next_keys`."""
        ...


class RecurrentCall:
    """A policy with `initial_state(num_envs)`, called as `output, next_state = policy(observation, state)`."""

    def __init__(self, policy: Any, num_envs: int) -> None:
        """Prepare for `num_envs` environments."""
        self._policy, self._num_envs = policy, num_envs
        self._single = False
        self.next_keys: tuple[Key, ...] = ()

    def initial(self) -> dict[Key, Tensor]:
        """Return the tensors of `initial_state`.

        Raises:
            PolicyInvalid: It returns neither a tensor nor a dict.
        """
        state = self._policy.initial_state(self._num_envs)
        self._single = isinstance(state, Tensor)
        if not (self._single or (isinstance(state, dict) and state)):
            raise PolicyInvalid(
                f"initial_state of the policy returned a {type(state).__name__}; return a tensor [num_envs, ...] or a "
                "dict of them"
            )
        named: dict[str, Tensor] = {ONE_STATE: state} if self._single else state
        self.next_keys = tuple(("next", RECURRENT, name) for name in named)
        return {(RECURRENT, name): value for name, value in named.items()}

    def __call__(self, observation: Any, hidden: HiddenState) -> dict[Any, Any]:
        """Call the policy, and check that it returns a pair.

        Raises:
            PolicyInvalid: It does not, or the next state differs in names from the initial one.
        """
        state: Any = {key[-1]: value for key, value in hidden.copies().items()}
        returned = self._policy(observation, state[ONE_STATE] if self._single else state)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise PolicyInvalid(
                f"a policy with initial_state must return a pair (output, next state), not a {type(returned).__name__}"
            )
        output, following = returned
        if self._single:
            following = {ONE_STATE: following}
        if not isinstance(following, Mapping) or following.keys() != state.keys():
            found = sorted(following) if isinstance(following, Mapping) else type(following).__name__
            raise PolicyInvalid(f"the next state of the policy is {found}; expected {sorted(state)}")
        own = {"action": output} if isinstance(output, Tensor) else dict(output.items())
        return own | {("next", RECURRENT, name): value for name, value in following.items()}


class TensorDictCall:
    """A `TensorDictModule`: reads by its `in_keys`, writes by its `out_keys`.

    A key that it reads, and writes under `next`, is a hidden state. It starts at zero, in the shape from the module's
    `make_tensordict_primer` (TorchRL's recurrent modules have it), or with the module's `initial_state`. If the module
    reads `is_init`, that key marks the environments that start an episode.
    """

    def __init__(self, policy: Any, tree: SpaceTree, num_envs: int, starts: Callable[[], Array]) -> None:
        """Prepare; `starts` returns bool [envs]: which environments are at the first frame of an episode."""
        self._policy, self._tree, self._num_envs, self._starts = policy, tree, num_envs, starts
        self._names = [_as_key(name) for name in policy.out_keys]
        self._reads = {_as_key(name) for name in policy.in_keys}
        self.reads_starts = IS_INIT in self._reads
        self._keys = observation_keys(tree)
        self.next_keys = tuple(key for key in self._names if key[0] == "next" and key[1:] in self._reads)

    def initial(self) -> dict[Key, Tensor]:
        """Return the initial state of each hidden key.

        Raises:
            PolicyInvalid: The shape of one is unknown.
        """
        given: dict[Key, Tensor] = {}
        if self.next_keys:
            given = dict(_primed(self._policy, self._num_envs))
            if hasattr(self._policy, "initial_state"):
                own = self._policy.initial_state(self._num_envs)
                given |= {_as_key(name): value for name, value in own.items()}
        missing = [key[1:] for key in self.next_keys if key[1:] not in given]
        if missing:
            raise PolicyInvalid(
                f"the policy carries {missing[0][-1]!r} from step to step, but its initial value is unknown; add "
                "initial_state(num_envs) to the policy, which returns a dict of tensors [num_envs, ...] by key"
            )
        return {key[1:]: given[key[1:]] for key in self.next_keys}

    def __call__(self, observation: Any, hidden: HiddenState) -> dict[Any, Any]:
        """Call the module on a TensorDict of observation, hidden state and `is_init`."""
        from tensordict import TensorDict

        leaves: list[Tensor] = self._tree.split(observation)
        inputs: dict[Key, Tensor] = dict(zip(self._keys, leaves, strict=True)) | hidden.copies()
        if self.reads_starts:
            inputs[IS_INIT] = torch.from_numpy(self._starts()[:, None]).to(leaves[0].device)
        output = self._policy(TensorDict(nested(inputs), batch_size=[self._num_envs]))
        return {key: output.get(key) for key in self._names}


def _as_key(name: object) -> Key:
    return name if isinstance(name, tuple) else (str(name),)


def _primed(policy: nn.Module, num_envs: int) -> Iterator[tuple[Key, Tensor]]:
    """Yield zero states for TorchRL's recurrent modules inside `policy`."""
    for module in policy.modules():
        make = getattr(module, "make_tensordict_primer", None)
        if make is None:
            continue
        for name, spec in make().primers.items(True, True):
            yield _as_key(name), torch.zeros((num_envs, *spec.shape), dtype=spec.dtype)
