"""Policies that read and write a TensorDict, as those of TorchRL do."""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from rollfleet.data.batch import IS_INIT, STEP_COUNT, Key
from rollfleet.data.tensor_memory import Array
from rollfleet.data.tensor_tree import key_of, nested
from rollfleet.envs.space_tree import SpaceTree, array_shape
from rollfleet.envs.spaces import observation_keys
from rollfleet.errors import PolicyInvalid
from rollfleet.exploration import Exploration
from rollfleet.policies.recurrence import HiddenState
from rollfleet.weights.modules import unwrapped


class Interacting(AbstractContextManager[None]):
    """Makes TensorDict's modules act by `how`, in the whole process: TensorDict has no such setting for a thread.

    None: as they do now. At the end they act as before, and at the end of the last of several threads as before all.
    """

    _lock = threading.Lock()
    _inside = 0
    _outside: Any = None  # how they acted before all

    def __init__(self, how: Exploration | None = None) -> None:
        from tensordict.nn import InteractionType, set_interaction_type
        from tensordict.nn.probabilistic import interaction_type

        self._now, self._set = interaction_type, set_interaction_type
        self._how, self._before = InteractionType[how.name] if how else None, list[Any]()

    def __enter__(self) -> None:
        kind = type(self)
        with self._lock:
            self._before.append(before := self._now())
            if not kind._inside:
                kind._outside = before
            kind._inside += 1
            self._set(self._how or before).__enter__()

    def __exit__(self, *error: object) -> None:
        kind = type(self)
        with self._lock:
            kind._inside -= 1
            before = self._before.pop()
            self._set(before if kind._inside else kind._outside).__enter__()


def takes_tensordict(policy: object) -> bool:
    """Whether a policy is called with a TensorDict; TorchRL's collectors decide in the same way.

    These are TensorDictModules, and callables with one parameter that is named `tensordict` or `td`, or annotated with
    a class of TensorDicts.
    """
    if _is_a(type(unwrapped(policy)), "TensorDictModuleBase"):
        return True
    try:
        parameters = list(signature(getattr(policy, "forward", policy)).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a built-in function has no signature
        return False
    if len(parameters) != 1:
        return False
    annotation = parameters[0].annotation
    if isinstance(annotation, str):  # from __future__ import annotations
        annotated = annotation.rpartition(".")[2] in ("TensorDict", "TensorDictBase")
    else:
        annotated = _is_a(annotation, "TensorDictBase")
    return parameters[0].name in ("tensordict", "td") or annotated


def _is_a(kind: object, name: str) -> bool:
    """Whether a class is one of TensorDict's of this name, without the cost of importing it."""
    bases = kind.__mro__ if isinstance(kind, type) else ()
    return any(base.__name__ == name and base.__module__.startswith("tensordict.") for base in bases)


class TensorDictCall:
    """Calls a policy with a TensorDict, and reads its outputs there: `out_keys`, or all that a plain callable sets.

    As in TorchRL's collectors, the TensorDict also has the outputs of the last step at the root: noise that depends on
    the noise before it is such a state. No reset changes it: the policy restarts it where `is_init` is true. If
    `initial_state(num_envs)` of the policy has its key, each episode starts with that value.

    A key that a module reads, and writes under `next`, is a hidden state. It starts at zero, in the shape from the
    module's `make_tensordict_primer` (TorchRL's recurrent modules have it), or with the module's `initial_state`.

    Attributes:
        next_keys: Keys of the next hidden state in the outputs.
        reads_starts: Whether the policy reads `is_init`, bool [envs, 1]: true at the first frame of an episode.
        reads_counts: Whether it reads `step_count`, int64 [envs, 1]: the frames of the episode before this one.
    """

    def __init__(
        self, policy: Any, spaces: tuple[SpaceTree, SpaceTree], num_envs: int, lengths: Callable[[], Array]
    ) -> None:
        """Prepare. `lengths` returns int64 [envs], the frames of the running episodes so far."""
        self._policy, self._tree = _batched(policy, spaces[1], num_envs), spaces[0]
        self._num_envs, self._lengths = num_envs, lengths
        self._names: list[Key] | None = None
        reads: set[Key] = set()
        if hasattr(policy, "out_keys"):
            self._names = [key_of(name) for name in policy.out_keys]
            reads = {key_of(name) for name in getattr(policy, "in_keys", ())}
        modules = policy.modules() if isinstance(policy, nn.Module) else ()
        self.reads_starts = IS_INIT in reads or any(
            getattr(module, "is_init_key", None) == IS_INIT[0] for module in modules
        )
        self.reads_counts = STEP_COUNT in reads
        self._keys = observation_keys(self._tree)
        names = self._names or ()
        self.next_keys = tuple(key for key in names if key[0] == "next" and key[1:] in reads)
        self._states = [key for key in names if key in reads and key not in self._keys]
        self._starting: dict[Key, Tensor] = {}  # values of keys at the root, at the first frame of an episode
        self._last: dict[Key, Tensor] = {}  # outputs of the last step

    def forget(self) -> None:
        """Forget the outputs of the last step."""
        self._last = {}

    def initial(self) -> dict[Key, Tensor]:
        """Return the initial state of each hidden key.

        Raises:
            PolicyInvalid: The shape of one is unknown.
        """
        given: dict[Key, Tensor] = {}
        if self.next_keys or self._states:
            given = dict(_primed(self._policy, self._num_envs))
            if hasattr(self._policy, "initial_state"):
                own = self._policy.initial_state(self._num_envs)
                given |= {key_of(name): value for name, value in own.items()}
        missing = [key[1:] for key in self.next_keys if key[1:] not in given]
        if missing:
            raise PolicyInvalid(
                f"the policy carries {missing[0][-1]!r} from step to step, but its initial value is unknown; add "
                "initial_state(num_envs) to the policy, which returns a dict of tensors [num_envs, ...] by key"
            )
        self._starting = {key: given[key] for key in self._states if key in given}
        return {key[1:]: given[key[1:]] for key in self.next_keys}

    def __call__(self, observation: Any, hidden: HiddenState) -> Any:
        """Call the policy; its outputs by key, or what it returned in place of a TensorDict."""
        from tensordict import TensorDict

        leaves: list[Tensor] = self._tree.split(observation)
        inputs: dict[Key, Tensor] = self._last | dict(zip(self._keys, leaves, strict=True)) | hidden.copies()
        device, lengths = leaves[0].device, self._lengths()
        if self.reads_starts or self._names is None:
            inputs[IS_INIT] = torch.from_numpy((lengths == 0)[:, None]).to(device)
        if self.reads_counts or self._names is None:
            inputs[STEP_COUNT] = torch.from_numpy(lengths[:, None].copy()).to(device)
        for key, value in self._starting.items():
            at_start = torch.from_numpy((lengths == 0).reshape(-1, *[1] * (value.ndim - 1))).to(device)
            inputs[key] = torch.where(at_start, value.to(device), self._last.get(key, value).to(device))
        output = self._policy(TensorDict(nested(inputs), batch_size=[self._num_envs]))
        if self._names is not None:
            outputs: dict[Key, Tensor] = {key: output.get(key) for key in self._names}
        elif hasattr(output, "batch_size"):
            entries = ((key_of(name), value) for name, value in output.items(True, True))
            outputs = {key: value for key, value in entries if value is not inputs.get(key)}
        else:
            return output
        self._last = {key: value for key, value in outputs.items() if key[0] != "next"}
        return outputs


def _batched(policy: Any, actions: SpaceTree, num_envs: int) -> Any:
    """Return TorchRL's `RandomPolicy` of one environment as that of `num_envs`; any other policy as it is."""
    spec = getattr(policy, "action_spec", None)
    if type(policy).__name__ != "RandomPolicy" or spec is None:
        return policy
    of_one = () if hasattr(spec, "keys") else array_shape(next(iter(actions.leaves.values())))
    if spec.shape != (num_envs, *of_one):
        policy = copy.copy(policy)
        policy.action_spec = spec.expand(num_envs, *spec.shape)
    return policy


def _primed(policy: nn.Module, num_envs: int) -> Iterator[tuple[Key, Tensor]]:
    """Yield zero states for TorchRL's recurrent modules inside `policy`."""
    for module in policy.modules():
        make = getattr(module, "make_tensordict_primer", None)
        if make is None:
            continue
        for name, spec in make().primers.items(True, True):
            yield key_of(name), torch.zeros((num_envs, *spec.shape), dtype=spec.dtype, device="cpu")
