"""Policies that carry a hidden state from one step to the next, and the two ways in which they are written.

The state that went into a step is in the batch beside the observation, and what came out of it in `next`, so that a
sequence can be replayed from any frame. Where an episode starts, the state is the initial one again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollfleet.data.batch import IS_INIT, Key, nested
from rollfleet.data.storage import Array, as_array
from rollfleet.envs.space_tree import SpaceTree
from rollfleet.envs.spaces import observation_keys
from rollfleet.errors import PolicyInvalid

RECURRENT = "recurrent"
ONE_STATE = "state"  # the name of a state that is a single tensor


class HiddenState:
    """What a policy remembers of each environment.

    Attributes:
        keys: Where it is in a batch.
        arrays: [envs, ...] each, in the memory that the policy is shown copies of.
        tensors: The same memory; bfloat16 is what it is here.
    """

    def __init__(self, initial: Mapping[Key, Tensor], num_envs: int, device: torch.device) -> None:
        """At the start of an episode everywhere.

        Raises:
            PolicyInvalid: The initial state is not one of `num_envs` environments.
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

    def shown(self) -> dict[Key, Tensor]:
        """Copies for the policy, on its device: it may write to them."""
        return {key: tensor.to(self._device, copy=True) for key, tensor in zip(self.keys, self.tensors, strict=True)}

    def forget(self, lanes: Array | slice) -> None:
        """Episodes start in `lanes`."""
        for array, initial in zip(self.arrays, self._initial, strict=True):
            array[lanes] = initial[lanes]


class Call(Protocol):
    """A policy that is not simply called with the observation."""

    next_keys: tuple[Key, ...]

    def initial(self) -> dict[Key, Tensor]:
        """The hidden state at the start of an episode, by its key in a batch."""
        ...

    def __call__(self, observation: Any, hidden: HiddenState) -> dict[Any, Any]:
        """What the policy puts out, and its next state under `next_keys`."""
        ...


class RecurrentCall:
    """A policy with `initial_state(num_envs)`, called as `output, next_state = policy(observation, state)`."""

    def __init__(self, policy: Any, num_envs: int) -> None:
        """For `num_envs` environments."""
        self._policy, self._num_envs = policy, num_envs
        self._single = False
        self.next_keys: tuple[Key, ...] = ()

    def initial(self) -> dict[Key, Tensor]:
        """What `initial_state` gives: a tensor, or a dict of them.

        Raises:
            PolicyInvalid: It gives something else.
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
        """Call it, and check that it returned a pair.

        Raises:
            PolicyInvalid: It did not, or its next state has other names than the initial one.
        """
        shown = hidden.shown()
        state: Any = {key[-1]: value for key, value in shown.items()}
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

    A key that it reads, and writes under `next`, is a hidden state. It starts at zero in the shape that the module's
    `make_tensordict_primer` tells (TorchRL's recurrent modules have it), or as its `initial_state` says. Where it reads
    `is_init` it is told which environments start an episode.
    """

    def __init__(self, policy: Any, tree: SpaceTree, num_envs: int, starts: Callable[[], NDArray[Any]]) -> None:
        """`starts` tells bool [envs]: which are at the first frame of an episode."""
        self._policy, self._tree, self._num_envs, self._starts = policy, tree, num_envs, starts
        self._names = [_as_key(name) for name in policy.out_keys]
        self._reads = {_as_key(name) for name in policy.in_keys}
        self.reads_starts = IS_INIT in self._reads
        self._keys = observation_keys(tree)
        self.next_keys = tuple(key for key in self._names if key[0] == "next" and key[1:] in self._reads)

    def initial(self) -> dict[Key, Tensor]:
        """Of each hidden key.

        Raises:
            PolicyInvalid: Nobody tells the shape of one.
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
                f"the policy carries {missing[0][-1]!r} from step to step, and does not tell how it starts; give it "
                "initial_state(num_envs), which returns a dict of tensors [num_envs, ...] by key"
            )
        return {key[1:]: given[key[1:]] for key in self.next_keys}

    def __call__(self, observation: Any, hidden: HiddenState) -> dict[Any, Any]:
        """Call it on a TensorDict of what it may read."""
        from tensordict import TensorDict

        leaves: list[Tensor] = self._tree.split(observation)
        inputs: dict[Key, Tensor] = dict(zip(self._keys, leaves, strict=True)) | hidden.shown()
        if self.reads_starts:
            inputs[IS_INIT] = torch.from_numpy(self._starts()[:, None]).to(leaves[0].device)
        output = self._policy(TensorDict(nested(inputs), batch_size=[self._num_envs]))
        return {key: output.get(key) for key in self._names}


def _as_key(name: object) -> Key:
    return name if isinstance(name, tuple) else (str(name),)


def _primed(policy: nn.Module, num_envs: int) -> Iterator[tuple[Key, Tensor]]:
    """The states that TorchRL's recurrent modules inside `policy` say they need, at zero."""
    for module in policy.modules():
        make = getattr(module, "make_tensordict_primer", None)
        if make is None:
            continue
        for name, spec in make().primers.items(True, True):
            yield _as_key(name), torch.zeros((num_envs, *spec.shape), dtype=spec.dtype)
