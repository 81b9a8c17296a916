"""Objects of TorchRL that do what their class does: nothing of them is overridden."""

from collections.abc import Container
from functools import cache
from importlib.metadata import version
from inspect import isfunction
from typing import Any

VERSIONS = {"torchrl": ("0.14.1",), "tensordict": ("0.14.3",)}
"""The versions whose classes were read."""

_OWN = ("torchrl.", "tensordict.")


class Untranslated(Exception):
    """A part of an environment or a policy has no translation, so that it stays TorchRL's. Its text is the reason."""


def check_own(part: Any, what: str, names: Container[str], hidden: Container[str] = ()) -> str:
    """Return the name of an object's class, of which it hides no method but `hidden` ones.

    Raises:
        Untranslated: The class is not exactly TorchRL's own of one of the names, or a method is another.
    """
    from tensordict import nn
    from torchrl import envs, modules

    kind: Any = type(part)
    name: str = kind.__name__
    if name not in names:
        raise Untranslated(f"{what} {name}")
    if kind not in [getattr(module, name, None) for module in (envs, envs.transforms, modules, nn)]:
        raise Untranslated(f"{name} is not exactly TorchRL's")
    if reason := _unknown(kind):
        raise Untranslated(reason)
    for attribute in vars(part):
        if attribute not in hidden and callable(getattr(kind, attribute, None)):
            raise Untranslated(f"{name}.{attribute} is overridden")
    return name


@cache
def _unknown(kind: type) -> str | None:
    """Return what is not known of a class: an installed version, or a method that was put into it or its bases."""
    for package, known in VERSIONS.items():
        if (installed := version(package)) not in known:
            return f"{package} {installed} is not one of {', '.join(known)}"
    for base in kind.__mro__:
        for name, value in [*vars(base).items()] if base.__module__.startswith(_OWN) else ():  # other threads add some
            if isfunction(value) and not value.__module__.startswith(_OWN):
                return f"{kind.__name__}.{name} is not TorchRL's"
    return None
