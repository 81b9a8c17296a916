"""Entry points, `module:callable`: the form in which a job names code."""

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter


def load(entrypoint: str) -> Callable[..., object]:
    """Import the callable that `entrypoint` names: `package.module:name`, where the name may have dots.

    Raises:
        ValueError: It cannot be parsed, imported or found, or is not callable. The message names the cause and the fix.
    """
    module_name, colon, name = entrypoint.partition(":")
    if not (colon and module_name and name):
        raise ValueError(f"{entrypoint!r} is not of the form 'package.module:callable'")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(f"{exc.name}.")):
            raise ValueError(
                f"module {module_name!r} of {entrypoint!r} was not found; install it, or put its folder on PYTHONPATH"
            ) from exc
        raise ValueError(
            f"module {module_name!r} of {entrypoint!r} needs {exc.name!r}, which is not installed"
        ) from exc
    except Exception as exc:
        raise ValueError(
            f"module {module_name!r} of {entrypoint!r} failed at import: {type(exc).__name__}: {exc}"
        ) from exc
    try:
        target = attrgetter(name)(module)
    except AttributeError as exc:
        raise ValueError(f"module {module_name!r} has no {name!r} (from {entrypoint!r})") from exc
    if not callable(target):
        raise ValueError(f"{entrypoint!r} is a {type(target).__name__}; name a function or class")
    return target  # type: ignore[no-any-return]
