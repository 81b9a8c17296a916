"""Pickled workloads, on their way to a process on this machine. Functions of the running script travel as code.

A script may make its collector at top level. The new process then does not run the script, and effects of its top level
are missing there, except that environments are registered. Below `if __name__ == "__main__":`, the new process first
runs the top level without that block, as those of multiprocessing do.
"""

import ast
import pickle
import sys
import threading
from collections.abc import Callable
from io import BytesIO
from multiprocessing import current_process, spawn
from pathlib import Path
from typing import TYPE_CHECKING, Final

import cloudpickle  # type: ignore[import-untyped]
import gymnasium

from rollfleet.errors import JobInvalid

if TYPE_CHECKING:
    from rollfleet.transports.workload import Workload

before_scripts: Final[list[Callable[[], object]]] = []
"""What a new process calls before it runs a script's top level."""


def pickle_workload(workload: "Workload") -> bytes:
    """Pickle a workload for `unpickle_workload`, in a process that trusts this one.

    Raises:
        JobInvalid: Part of it cannot be pickled; the message names that part.
    """
    registered = {name: spec for name, spec in gymnasium.registry.items() if not _is_gymnasiums(spec)}
    try:
        head = (bytes(current_process().authkey), before_scripts if (script := _script()) else [], script)
        return pickle.dumps(head) + bytes(cloudpickle.dumps((registered, workload)))
    except Exception as error:  # `__reduce__` and `__getstate__` may raise any error
        raise JobInvalid(
            f"the environments or the policy cannot be sent to another process: {error!r}; pass a function that makes "
            'them there, name one (`module:callable`), or choose start_method="fork"'
        ) from error


def unpickle_workload(data: memoryview) -> "Workload":
    """Return the workload that `pickle_workload` pickled. Bytes after it are ignored.

    Raises:
        JobInvalid: A module or name that it needs is missing in this process.
    """
    try:
        stream = BytesIO(data)
        # Proxies of a multiprocessing.Manager need the key as they load.
        current_process().authkey, before, script = pickle.load(stream)
        for call in before:
            call()
        spawn.prepare(script)
        registered, workload = pickle.load(stream)
    except Exception as error:
        raise JobInvalid(
            f"a worker could not run the script's top level, or load the environments or the policy: {error!r}; put "
            'the code that they need into a module that the worker can import, or choose start_method="fork"'
        ) from error
    gymnasium.registry.update(registered)
    return workload  # type: ignore[no-any-return]


def _script() -> dict[str, str]:
    """Return the running script, as `spawn.prepare` takes it, if the main thread is below its main guard; else {}."""
    main, frame = sys.modules["__main__"], sys._current_frames().get(threading.main_thread().ident or 0)
    while frame and (frame.f_globals is not vars(main) or frame.f_code.co_name != "<module>"):
        frame = frame.f_back
    try:
        statements = ast.parse(Path(main.__file__ or "").read_bytes()).body if frame else []
    except (AttributeError, OSError, SyntaxError, ValueError):  # a notebook, or a file that has changed
        return {}
    line = frame.f_lineno if frame else 0
    now = [each for each in statements if each.lineno <= line]  # the last of them is under way
    guarded = now and isinstance(now[-1], ast.If) and "__main__" in ast.unparse(now[-1].test)
    found = spawn.get_preparation_data("") if guarded else {}
    return {name: value for name, value in found.items() if name.startswith("init_main")}


def _is_gymnasiums(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.")
