"""Entry points, `module:callable`: the form in which a job names code."""

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from types import ModuleType

from rollfleet_api.wording import nearest


def load(entrypoint: str) -> Callable[..., object]:
    """Import the callable that `entrypoint` names: `package.module:name`, where the name may have dots.

    Raises:
        ValueError: It cannot be parsed, imported or found, or is not callable. The message names the cause and the fix.
    """
    module_name, colon, name = entrypoint.partition(":")
    if not (colon and module_name and name):
        raise ValueError(f"{entrypoint!r} is not of the form 'package.module:callable'")
    module = imported(module_name)
    try:
        target = attrgetter(name)(module)
    except AttributeError as exc:
        near = nearest(name, [known for known in dir(module) if not known.startswith("_")])
        hint = f"; did you mean {module_name + ':' + near!r}?" if near else ""
        raise ValueError(f"module {module_name!r} has no {name!r}{hint}") from exc
    if not callable(target):
        raise ValueError(f"{entrypoint!r} is a {type(target).__name__}; name a function or class")
    return target  # type: ignore[no-any-return]


def imported(module: str) -> ModuleType:
    """Import a module.

    Raises:
        ValueError: It cannot be imported. The message names the cause and the fix.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module == exc.name or module.startswith(f"{exc.name}.")):
            raise ValueError(
                f"module {module!r} was not found; install it, put its folder on PYTHONPATH, or give workers the code "
                "in `spec.source`"
            ) from exc
        raise ValueError(f"module {module!r} needs {exc.name!r}, which is not installed") from exc
    except Exception as exc:
        raise ValueError(f"module {module!r} failed at import: {type(exc).__name__}: {exc}") from exc
