"""A policy of any kind, called once a step for all environments: tensors in, arrays out.

The keys, dtypes and shapes of a policy's outputs are learned and checked at the first call of a fragment, not at every
step.
"""

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from rollfleet.data.batch import ACTION, Key
from rollfleet.data.tensor_memory import Array, as_array, as_arrays
from rollfleet.data.tensor_tree import nested
from rollfleet.envs.space_tree import Space, SpaceTree, array_dtype, array_shape, unheld
from rollfleet.envs.spaces import action_keys, observation_keys, tensor_dtype
from rollfleet.errors import EnvironmentInvalid, MessageCorrupt, PolicyInvalid
from rollfleet.exploration import Exploration, exploration, exploring
from rollfleet.policies.fast_mlp import FastMlp, fast
from rollfleet.policies.outputs import check_action, flattened, is_private, key_of, shown
from rollfleet.policies.recurrence import Call, HiddenState, RecurrentCall
from rollfleet.policies.tensordict_call import Interacting, TensorDictCall, takes_tensordict
from rollfleet.system.generators import generators_kept

Policy: TypeAlias = Callable[..., object]
"""Maps observations [envs, ...] to actions [envs, ...], or to a dict or TensorDict with `action` and other outputs for
the batch, each [envs, ...].

Observations are a tensor; for Dict and Tuple spaces dicts and tuples of tensors. Actions are elements of the action
space: int64 for Discrete, `start` included; for Dict and Tuple spaces a dict or tuple under `action`. Outputs under
names that begin with an underscore stay out of the batch.

A `TensorDictModule`, or a callable whose one parameter is named `tensordict` or `td` or annotated with `TensorDict`,
gets a TensorDict instead, and writes into it.

A policy with `initial_state(num_envs)` is recurrent. Its initial state is a tensor [num_envs, ...], or a dict or
tuple of them. It is called as `policy(observation, state)` and returns a pair: the above, and the next state."""


class Actor:
    """Calls a policy on its own preallocated input.

    Attributes:
        keys: Keys of the policy's outputs, the action's leaves first; empty before the first call.
        carried_keys: Keys of values carried to the next step: leaves of the observation, then of the hidden state.
        carried: An array [envs, ...] for each of them. Observations are the policy's input, which it may keep and, in
            `__call__`, change: record them before. They are not written again once the policy has seen them.
        device: The device of the policy's parameters.
        private_keys: Those of `carried_keys` that stay out of batches.
        reads_starts: Whether the policy reads `is_init`.
        reads_counts: Whether the policy reads `step_count`.
    """

    def __init__(
        self,
        policy: Policy,
        spaces: tuple[Space, Space],
        num_envs: int,
        lengths: Callable[[], Array],
        *,
        exploration: Exploration = Exploration.RANDOM,
        trained_here: bool = False,
        acts_again: bool = False,
    ) -> None:
        """Keep the policy; it is not called yet.

        Args:
            policy: See `Policy`.
            spaces: The observation and the action space of a single environment.
            num_envs: The number of environments.
            lengths: Returns int64 [envs], the frames of the running episodes so far.
            exploration: How the policy acts.
            trained_here: Whether the learner trains this very object. What it keeps of a call can then be trained on.
            acts_again: Whether it may act twice in a step; see `look_again`.

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
        self._whole = [index for index, array in enumerate(self.carried) if array.dtype.kind in "iub"]
        self.device = device_of_policy(policy)
        self.action_of: Callable[[list[Array]], Any] = itemgetter(0) if self.actions.plain else self.actions.join
        self._inputs = [torch.from_numpy(array) for array in self.carried]
        self._simple = self.observations.plain and self.device.type == "cpu"
        self._policy = policy
        self._num_envs = num_envs
        self._action_keys = action_keys(self.actions)
        self._casts: list[tuple[int, np.dtype[Any]]] = []  # actions whose dtype differs from the space's
        self._layout: dict[Key, tuple[torch.dtype, tuple[int, ...]]] = {}
        self._plain_keys: list[object] | None = None  # keys of the policy's dict, in the order of `keys`
        self._order: tuple[Key, ...] = ()  # `keys`, then those of the next state
        self._hidden: HiddenState | None = None
        self._special: Call | None = None
        self._fast = None if acts_again else fast(policy, spaces, num_envs)
        self._quick: FastMlp | None = None  # the same, during a fragment that it acts in
        self.private_keys: tuple[Key, ...] = ()
        self.reads_starts = self.reads_counts = False
        if takes_tensordict(policy):
            module = TensorDictCall(policy, (self.observations, self.actions), num_envs, lengths)
            self._special, self.reads_starts, self.reads_counts = module, module.reads_starts, module.reads_counts
        elif hasattr(policy, "initial_state"):
            self._special = RecurrentCall(policy, num_envs)
        # The contexts of a call. They end with it: environments may train, or have policies of their own.
        special = isinstance(self._special, TensorDictCall)
        self._usual = exploration is Exploration.RANDOM and not special
        self._exploring = exploring(exploration)
        self._interacting: AbstractContextManager[object] = Interacting(exploration) if special else nullcontext()
        # Tensors that a policy keeps (a hidden state, a running mean) would be unusable outside of inference mode.
        self._gradless = (
            torch.inference_mode() if isinstance(policy, nn.Module) and not trained_here else torch.no_grad()
        )

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore torch's modes and `exploration()` at the end: Ctrl-C may leave a call's contexts half entered."""
        special = isinstance(self._special, TensorDictCall)
        inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        with (
            exploring(exploration()),
            Interacting() if special else nullcontext(),
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad),
        ):
            yield

    def first(self) -> list[Array]:
        """Start a fragment: act as in `__call__`, and learn or check the outputs' keys, dtypes and shapes.

        Raises:
            PolicyInvalid: The action is missing, or has a wrong shape or dtype; or the outputs differ from those of
                earlier fragments. Also if the very first call fails: a policy that has never worked is not retried.
        """
        if self._fast is not None and not self._layout:
            self._try()
        with self._exploring:
            self._quick = self._fast if self._fast is not None and self._fast.begin() else None
        if self._quick is not None:
            self._show(0, self.carried[0].copy())  # `advance` writes into it from now on
            return self()
        return self._learn()

    def idle(self) -> list[Array]:
        """Return zeros in place of the policy's outputs, then its unchanged state.

        The policy is not called. Only if it was never called, one call shows which outputs it has.

        Raises:
            PolicyInvalid: See `first`.
        """
        self._quick = None
        if not self._layout:
            self._try()
        zeros = [
            as_array(torch.zeros(self._layout[key][1], dtype=self._layout[key][0], device="cpu")) for key in self.keys
        ]
        return [*zeros, *(self._hidden.arrays if self._hidden else ())]

    def reseed(self, seed: int) -> None:
        """Start over, as a new actor: without the last step's outputs, and with the noise of `seed`."""
        self._forget()
        if self._fast is not None:
            self._fast.reseed(seed)

    def _try(self) -> None:
        """Learn the outputs by a call that leaves nothing behind."""
        with generators_kept([self.device] if self.device.type == "cuda" else []):
            self._learn()
        self._forget()

    def _forget(self) -> None:
        if isinstance(self._special, TensorDictCall):
            self._special.forget()

    def _learn(self) -> list[Array]:
        with self._exploring, self._interacting, self._gradless:
            return self._learned()

    def _learned(self) -> list[Array]:
        self._inputs = [torch.from_numpy(array.copy()) for array in self.carried[: len(self._inputs)]]
        output = self._call() if self._layout else self._very_first()
        flat = dict(flattened(output, self.carried_keys, self._next_keys()))
        check_action(flat, self.actions, self._num_envs)
        layout = {key: (value.dtype, tuple(value.shape)) for key, value in flat.items()}
        if self._layout and layout != self._layout:
            raise PolicyInvalid(f"the policy first returned {_listed(self._layout)}, and now {_listed(layout)}")
        for key, (_, shape) in layout.items():
            if shape[:1] != (self._num_envs,):
                raise PolicyInvalid(
                    f"{shown(key)} of the policy has shape {list(shape)}; expected [{self._num_envs}, ...]"
                )
        self._check_next_state(layout)
        try:
            nested(dict.fromkeys((*self.carried_keys, *flat)))
        except MessageCorrupt as error:
            raise PolicyInvalid(f"a batch cannot hold what the policy returned: {error}; rename one of them") from None
        self._layout = layout
        following = self._next_keys()
        extras = (key for key in flat if key not in following and key[:1] != ACTION)
        self.keys = (*self._action_keys, *extras)
        self._order = (*self.keys, *following)
        self._plain_keys = None
        if type(output) is dict and all(isinstance(value, Tensor) for value in output.values()):
            originals = {key_of(original): original for original in output}
            self._plain_keys = [originals[key] for key in self._order]
        arrays = as_arrays([flat[key] for key in self._order])
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
        if self._usual and exploration() is Exploration.RANDOM:  # entering a context costs as much as a small layer
            with self._gradless:
                output = self._call()
        else:
            with self._exploring, self._interacting, self._gradless:
                output = self._call()
        if isinstance(output, Tensor):
            values = [output]
        elif self._plain_keys is not None and type(output) is dict:
            values = [output[key] for key in self._plain_keys]
        else:
            flat = dict(flattened(output, self.carried_keys, self._next_keys()))
            values = [flat[key] for key in self._order]
        arrays = as_arrays(values)
        return self._cast(arrays) if self._casts else arrays

    def rest(self) -> list[tuple[Key, Array]]:
        """Return outputs that calls since `first` omitted, [steps, envs, ...] by key. Call it once, after the steps."""
        return [] if self._quick is None else list(zip(self.keys[1:], self._quick.rest(), strict=True))

    def advance(self, observation: Any, values: Sequence[Array] = ()) -> None:
        """Carry the environments' `observation`, and the next state in `values`, to the next step.

        Raises:
            EnvironmentInvalid: The observation has another shape than its space, or a number that the space's dtype
                cannot hold.
        """
        if self._whole:
            self._check_numbers(observation)
        if self._quick is not None:
            array = self.carried[0]
            if getattr(observation, "shape", None) != array.shape and np.shape(observation) != array.shape:
                raise self._misfit(0, np.shape(observation))
            array[...] = observation
            return
        if self.observations.plain:  # the same as below, in half the time
            self._show(0, np.array(observation, self.carried[0].dtype))
        else:
            for index, leaf in enumerate(self.observations.split(observation)):
                self._show(index, np.array(leaf, self.carried[index].dtype))
        if self._hidden is not None:
            for array, new in zip(self._hidden.arrays, values[len(self.keys) :], strict=bool(values)):
                array[...] = new

    def restart(self, envs: Array | slice, observation: Any = None) -> None:
        """Start episodes in `envs`; the policy has not seen the observations after the last step yet.

        Args:
            envs: The environments.
            observation: First observations, [envs, ...] of all environments; None: they are in `carried` already.
        """
        if observation is not None:
            if self._whole:
                self._check_numbers(observation)
            for array, new in zip(self.carried, self.observations.split(observation), strict=False):
                array[envs] = new[envs]
        if self._hidden is not None:
            self._hidden.restart(envs)

    def look_again(self, envs: Array, observation: Any) -> None:
        """Start episodes in `envs` after the policy has acted: its next call is for the same step."""
        self.restart(envs, observation)
        for index in range(len(self._inputs)):
            self._show(index, self.carried[index].copy())

    def _show(self, index: int, array: Array) -> None:
        if array.shape != self.carried[index].shape:
            raise self._misfit(index, array.shape)
        self.carried[index], self._inputs[index] = array, torch.from_numpy(array)

    def _check_numbers(self, observation: Any) -> None:
        leaves = self.observations.split(observation)
        for index in self._whole:
            dtype, found = self.carried[index].dtype, np.asarray(leaves[index])
            if found.dtype is not dtype and (number := unheld(found, dtype)):
                raise EnvironmentInvalid(
                    f"the environments returned {shown(self.carried_keys[index])} of dtype {found.dtype}, such as "
                    f"{number[0]}; their space has {dtype}: return that dtype, or declare the other one in the space"
                )

    def _misfit(self, index: int, shape: tuple[int, ...]) -> EnvironmentInvalid:
        return EnvironmentInvalid(
            f"the environments returned {shown(self.carried_keys[index])} of shape {list(shape)}; expected "
            f"{list(self.carried[index].shape)}: the number of environments, then the shape of their space"
        )

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
                self.private_keys = tuple(filter(is_private, self._hidden.keys))
                self.carried += self._hidden.arrays
            return self._call()
        except (torch.OutOfMemoryError, PolicyInvalid):  # another process may have used the memory: retry later
            raise
        except Exception as error:
            seen = ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for tensor in self._inputs)
            frames = traceback.extract_tb(error.__traceback__)
            own = [each for each in frames if not re.search("site-packages|/rollfleet/policies/", each.filename)]
            where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
            cause = f"{type(error).__name__}: {error}{where}"
            raise PolicyInvalid(f"the policy failed at its first call, with an observation {seen}: {cause}") from error

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
            if self._layout[self.keys[index]][0] is torch.bfloat16:
                arrays[index] = torch.from_numpy(arrays[index]).view(torch.bfloat16).float().numpy()
            if number := unheld(arrays[index], dtype):
                raise PolicyInvalid(
                    f"the policy returned {shown(self.keys[index])} with {number[0]}, which the action space's {dtype} "
                    "cannot hold"
                )
            arrays[index] = arrays[index].astype(dtype)
        return arrays

    def _next_keys(self) -> tuple[Key, ...]:
        return self._special.next_keys if self._special else ()

    def _check_next_state(self, layout: Mapping[Key, tuple[torch.dtype, tuple[int, ...]]]) -> None:
        if self._special is None or self._hidden is None:
            return
        for key, now in zip(self._special.next_keys, self._hidden.tensors, strict=True):
            if layout[key] != (now.dtype, tuple(now.shape)):
                raise PolicyInvalid(
                    f"the policy's next state {key[-1]!r} is {layout[key][0]} {list(layout[key][1])}; expected "
                    f"{now.dtype} {list(now.shape)}, as at the start"
                )


def _listed(layout: Mapping[Key, tuple[torch.dtype, tuple[int, ...]]]) -> str:
    return ", ".join(f"{shown(key)} {dtype} {list(shape)}" for key, (dtype, shape) in sorted(layout.items()))


def device_of_policy(policy: object) -> torch.device:
    """Return the device of a policy's parameters; the CPU without any."""
    if isinstance(policy, nn.Module):
        for tensor in (*policy.parameters(), *policy.buffers()):
            return tensor.device
    return torch.device("cpu")
