"""Objects of TorchRL that do what their class does: nothing of them is overridden."""

from collections.abc import Collection
from functools import cache
from importlib.metadata import version
from inspect import isfunction
from typing import Any

VERSIONS = {"torchrl": ("0.14.1",), "tensordict": ("0.14.3",)}
"""The versions whose classes were read."""

_OWN = ("torchrl.", "tensordict.")


class Refused(Exception):
    """A part has no translation. Its text is the reason; it never leaves this package."""


@cache
def check_version() -> str | None:
    """Return why the installed version of TorchRL or tensordict is not translated; None: it is."""
    for name, known in VERSIONS.items():
        if (installed := version(name)) not in known:
            return f"{name} {installed} is not one of {', '.join(known)}"
    return None


def check_own(part: object, kind: Any, known: Collection[str] = ()) -> None:
    """Check that an object is exactly of a class of TorchRL, and hides none of its methods but `known` ones.

    Raises:
        Refused: It does not.
    """
    foreign = _foreign(kind)
    if type(part) is not kind:
        raise Refused(f"{type(part).__name__} is not exactly TorchRL's {kind.__name__}")
    if foreign:
        raise Refused(f"{kind.__name__}.{foreign} is not TorchRL's")
    for name in vars(part):
        if name not in known and callable(getattr(kind, name, None)):
            raise Refused(f"{kind.__name__}.{name} is overridden")


@cache
def _foreign(kind: type) -> str | None:
    """Return the name of a method that was put into a class of TorchRL, or into one that it derives from."""
    for base in kind.__mro__:
        for name, value in vars(base).items() if base.__module__.startswith(_OWN) else ():
            if isfunction(value) and not value.__module__.startswith(_OWN):
                return name
    return None
