"""Frames of an environment and a policy of TorchRL, on plain tensors as far as these can be translated."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from rollfleet.data.tensor_tree import grouped
from rollfleet.plain_tensors.environments import reset_of, translate_env
from rollfleet.plain_tensors.known import Untranslated
from rollfleet.plain_tensors.policy import PlainPolicy
from rollfleet.plain_tensors.transforms import Values

log = logging.getLogger(__name__)

_Call: TypeAlias = Callable[[Any], Any]


class PlainFrames:
    """Steps an environment with a policy, in the place of a loop over TensorDicts.

    What is not plain takes TorchRL's own way: an untranslated environment or policy, a reset of several simulators or
    of most transforms, and a policy's output that is no tensor.

    Attributes:
        path: What of the last batch was on plain tensors, and what kept the rest from it.
    """

    ACTS: Final = PlainPolicy.__call__.__code__  # in the traceback of an error of the policy

    def __init__(self, policy: Any, reason: str = "") -> None:
        """`reason`: why the policy is not translated, whatever it is."""
        self._policy = Untranslated(reason) if reason else PlainPolicy(policy)
        self.path = ""

    def collect(
        self, env: Any, carrier: Any, act: _Call, steps: int, stop: Any, ended: _Call, random_actions: bool
    ) -> tuple[Any, Tensor, Any] | None:
        """Return frames `[*batch size, T]`, where episodes ended, in this shape, and the next carrier.

        The carrier is the TensorDict that an action is taken for. `act` returns it with the policy's outputs, or with
        random actions; `ended`, where an episode ends with a frame. There are at most `steps` frames, fewer once `stop`
        is true. None: nothing is translated.
        """
        step, policy, sizes = translate_env(env), self._policy, carrier.batch_size
        if random_actions:
            policy = Untranslated("random actions")
        elif isinstance(policy, PlainPolicy):
            policy = policy.refresh(sizes) or policy
        ways = (f"TorchRL's own ({it})" if isinstance(it, Untranslated) else "plain tensors" for it in (step, policy))
        if self.path != (path := "environment: {}; policy: {}".format(*ways)):
            self.path = path
            log.debug(path)
        if isinstance(step, Untranslated) and isinstance(policy, Untranslated):
            return None
        write = None if isinstance(policy, Untranslated) else policy
        reset = None if isinstance(step, Untranslated) else reset_of(env)
        device, dims, frames, ends = carrier.device, len(sizes), list[Any](), list[Tensor]()
        none = torch.zeros(sizes, dtype=torch.bool, device="cpu")

        def plainly(tensordict: Any) -> Any:
            return tensordict if isinstance(step, Untranslated) else _flat(tensordict) or tensordict

        carrier = plainly(carrier)
        for t in range(steps):
            if t and stop():
                break
            if isinstance(carrier, dict) and write is not None:
                write(carrier)
            elif write is not None and (values := _flat(carrier)) is not None:
                write(found := dict(values))
                for key, value in found.items():
                    if values.get(key) is not value:
                        carrier.set(key, value)
            else:
                carrier = plainly(act(_tensordict(carrier, sizes, device)))
            if isinstance(step, Untranslated) or not isinstance(carrier, dict):
                frame, carrier = env.step_and_maybe_reset(carrier)
                frames.append(frame)
                ends.append(ended(frame))
                carrier = plainly(carrier)
                continue
            following, after = step(carrier)
            frames.append((carrier, following))
            done = following["done",]
            over = bool(done.any())
            ends.append(done.flatten(dims).any(-1) if over else none)
            if over:
                after = reset(after) if reset else plainly(env.maybe_reset(_tensordict(after, sizes, device)))
            carrier = after
        return _stacked(frames, sizes, device), torch.stack(ends, dim=-1), _tensordict(carrier, sizes, device)


def _flat(tensordict: Any) -> Values | None:
    """Return the tensors of a TensorDict by key; None: a dict of tensors cannot have its form, or a key is private."""
    from tensordict import TensorDict

    if type(tensordict) is not TensorDict:
        return None
    found: Values = {}
    for name, value in tensordict.items():
        if isinstance(value, Tensor) and not name.startswith("_"):
            found[name,] = value
        elif type(value) is TensorDict and value.batch_size == tensordict.batch_size and (inner := _flat(value)):
            found.update({(name, *key): each for key, each in inner.items()})
        else:
            return None
    return found


def _tensordict(values: Any, sizes: torch.Size, device: torch.device | None) -> Any:
    return grouped(values, sizes, device=device) if isinstance(values, dict) else values  # it is one


def _merged(values: Values, following: Values) -> Values:
    """Return a whole frame. As in a TensorDict, `next` stands where the policy has first written into it."""
    whole: Values = {}
    after = {("next", *key): value for key, value in following.items()}
    for key, value in values.items():
        whole |= after if key[0] == "next" else {key: value}
    return whole | after


def _stacked(frames: list[Any], sizes: torch.Size, device: torch.device | None) -> Any:
    """Return frames as a TensorDict `[*batch size, T]`; a lazy stack if they differ, as TorchRL's collectors do."""
    from tensordict import TensorDict

    keys = [each.keys() for each in frames[0]] if isinstance(frames[0], tuple) else []
    if all(isinstance(frame, tuple) and [each.keys() for each in frame] == keys for frame in frames):
        with suppress(RuntimeError):  # of different shapes
            stacked = {
                key: torch.stack([f[1][key[1:]] if key[0] == "next" else f[0][key] for f in frames], len(sizes))
                for key in _merged(*frames[0])
            }
            return _tensordict(stacked, torch.Size((*sizes, len(frames))), device)
    whole = [_tensordict(_merged(*frame), sizes, device) if isinstance(frame, tuple) else frame for frame in frames]
    return TensorDict.maybe_dense_stack(whole, dim=-1)
