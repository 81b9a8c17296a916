"""TorchRL's arguments: the signatures of its collectors, and the keywords of `rollfleet.Collector` that they mean."""

from collections.abc import Mapping
from inspect import Parameter, Signature, signature
from typing import Any, Final

import torch

from rollfleet.errors import JobInvalid

PLACE: Final = ("cluster", "job", "nats")
"""Keywords that no collector of TorchRL has: where the workers run."""

elsewhere: dict[str, Any] = {}
"""The place of collectors that name none, by the keywords of `PLACE`, and the number of their `workers`.

`python -m rollfleet.torchrl` sets it before it runs a program.
"""

_FLAGS: Final = ("no_cuda_sync", "reset_at_each_iter", "set_truncated")  # the same in `rollfleet.Collector`


def is_elsewhere(arguments: Mapping[str, Any]) -> bool:
    """Return whether a collector with these arguments has other workers than its class says."""
    return bool(elsewhere) or any(arguments.get(name) is not None for name in PLACE)


def signature_like(theirs: type) -> Signature:
    """Return the signature of a collector of TorchRL, without `self`, with the keywords of `PLACE`."""
    own = [each for each in signature(theirs.__init__).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]  # type: ignore[misc]
    return Signature([*own[1:], *(Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in PLACE)])


def bound(declared: Signature, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name, with defaults.

    Raises:
        TypeError: The call does not fit the signature.
    """
    try:
        call = declared.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{caller}: {error}") from None
    call.apply_defaults()
    return dict(call.arguments)


def native(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of `rollfleet.Collector` that arguments of TorchRL's translate to.

    Raises:
        JobInvalid: An argument cannot be had. The message names it.
        ValueError: A value cannot be used, as in TorchRL.
    """
    if arguments.get("weight_updater") is not None:
        raise JobInvalid("`weight_updater` is not available: weights travel by themselves; remove it")
    if arguments.get("cudagraph_policy") and not torch.cuda.is_available():
        raise JobInvalid("`cudagraph_policy` needs a CUDA device, and this machine has none; pass False or None")
    if arguments.get("reset_when_done") is False:
        raise ValueError("reset_when_done is deprecated.")
    found: dict[str, Any] = {name: True for name in _FLAGS if arguments.get(name)}
    if not arguments.get("storing_device") and not arguments.get("device"):
        found.pop("no_cuda_sync", None)
    if (exploration := arguments.get("exploration_type")) is not None:
        found["exploration"] = str(exploration.name).lower()
    if (frames := arguments.get("init_random_frames") or 0) > 0:
        found["init_random_frames"] = int(frames)
    return found
