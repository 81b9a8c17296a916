"""Signatures of TorchRL's collectors: those of the installed version, plus `cluster`, `job` and `nats`."""

from inspect import Parameter, Signature, signature
from typing import Any

PLACE = ("cluster", "job", "nats")
"""Keywords that no collector of TorchRL has: where the workers run."""

elsewhere: dict[str, Any] = {}
"""The place of collectors that name none, by the keywords of `PLACE`, and the number of their `workers`.

`python -m rollfleet.torchrl` sets it before it runs a program.
"""


def is_elsewhere(arguments: Any) -> bool:
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
