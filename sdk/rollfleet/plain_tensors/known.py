"""Objects that run the code of their class in TorchRL, tensordict or torch, and no other code."""

import logging
from collections.abc import Container
from functools import cache
from importlib import import_module
from typing import Any

log = logging.getLogger(__name__)

VERSIONS = {"torchrl": ("0.14.1",), "tensordict": ("0.14.3",)}
"""The versions whose classes were read."""

OWN = {"torchrl", "tensordict", "torch", "builtins", "contextlib", "functools", "pyvers", "typing", "typing_extensions"}
_read: dict[type, tuple[list[Any], str | None]] = {}  # what a class held, and the reason against it
_seen = set[type]()  # in this batch


class Untranslated(Exception):
    """A part of an environment or a policy has no translation, so that it stays TorchRL's. Its text is the reason."""


def check_own(part: Any, what: str, names: Container[str], hidden: Container[str] = ()) -> str:
    """Return the name of an object's class.

    Raises:
        Untranslated: It has none of the names, or `changed` says that a method is another.
    """
    name = type(part).__name__
    if reason := f"{what} {name}" if name not in names else unknown_version() or changed(part, hidden):
        raise Untranslated(reason)
    return name


def changed(part: Any, hidden: Container[str] = ()) -> str | None:
    """Return what an object, or a class, runs that is not of its packages, `hidden` ones apart; None: nothing.

    This one rule holds for all that has a translation, once a batch: a class that differs is read again.
    """
    kind = part if isinstance(part, type) else type(part)
    for base in kind.__mro__:
        if base not in _seen:
            found = [*vars(base).values()]
            if base not in _read or _read[base][0] != found:
                _read[base] = found, _foreign(base)
            _seen.add(base)
        if reason := _read[base][1]:
            return reason
    for name, value in () if part is kind else vars(part).items():
        its = getattr(kind, name, part)
        if its is not part and (callable(value) or callable(its)) and name not in hidden:
            return f"{kind.__name__}.{name} is overridden"
    return None


def look_again() -> None:
    """Let `changed` look at each class once more: a batch begins."""
    _seen.clear()


def _foreign(kind: type) -> str | None:
    if kind.__module__.partition(".")[0] not in OWN:
        return f"{kind.__name__} is not TorchRL's"
    return next((f"{kind.__name__}.{n} is not TorchRL's" for n, v in [*vars(kind).items()] if not _is_own(v)), None)


def _is_own(value: Any) -> bool:
    """Whether an attribute of a class runs its packages' code alone, whatever names its functions took over."""
    inner = [getattr(value, name, None) for name in ("__wrapped__", "__func__", "fget", "fset", "func")]
    home = str(getattr(value, "__globals__", {}).get("__name__") or getattr(type(value), "__module__", ""))
    runs = callable(value) or hasattr(type(value), "__get__")
    return not runs or (home.partition(".")[0] in OWN and all(map(_is_own, filter(callable, inner))))


@cache
def unknown_version() -> str | None:
    """Return which package is installed in a version that is not in `VERSIONS`; None: none is. Log it once."""
    for package, known in VERSIONS.items():
        if (installed := import_module(package).__version__) not in known:
            reason = f"{package} {installed} is not one of {', '.join(known)}"
            log.warning("%s: all environments and policies take TorchRL's own path, which is slower", reason)
            return reason
    return None
