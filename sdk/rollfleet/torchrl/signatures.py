"""Signatures of TorchRL's collectors: those of the installed version, plus `cluster`, `job` and `nats`."""

from inspect import Parameter, Signature, signature
from typing import Any

PLACE = ("cluster", "job", "nats")
"""Keywords that no collector of TorchRL has: where the workers run."""


def signature_like(theirs: type, **more: Any) -> Signature:
    """Return the signature of a collector of TorchRL, without `self`, with the keywords of `PLACE` and `more`."""
    own = [each for each in signature(theirs.__init__).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]  # type: ignore[misc]
    known = {each.name for each in own}
    added = {name: default for name, default in {**more, **dict.fromkeys(PLACE)}.items() if name not in known}
    keywords = [Parameter(name, Parameter.KEYWORD_ONLY, default=default) for name, default in added.items()]
    return Signature([*own[1:], *keywords])


def bound(declared: Signature, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name, with defaults.

    Raises:
        TypeError: The call does not fit the signature.
    """
    if unknown := [name for name in kwargs if name not in declared.parameters]:
        raise TypeError(f"Keys {unknown} are unknown to {caller}.")
    try:
        call = declared.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{caller}: {error}") from None
    call.apply_defaults()
    return dict(call.arguments)
