"""Pickled workloads, on their way to a process on this machine. Functions of the running script travel as code.

The new process does not run the script again. So a script may make its collector at top level, with or without
`if __name__ == "__main__"`. Other effects of the script are missing there, except that environments are registered.
"""

import pickle
from io import BytesIO
from multiprocessing import current_process
from typing import TYPE_CHECKING

import cloudpickle  # type: ignore[import-untyped]
import gymnasium

from rollfleet.errors import JobInvalid

if TYPE_CHECKING:
    from rollfleet.transports.workload import Workload


def pickle_workload(workload: "Workload") -> bytes:
    """Pickle a workload for `unpickle_workload`, in a process that trusts this one.

    Raises:
        JobInvalid: Part of it cannot be pickled; the message names that part.
    """
    registered = {name: spec for name, spec in gymnasium.registry.items() if not _is_gymnasiums(spec)}
    try:
        return pickle.dumps(bytes(current_process().authkey)) + bytes(cloudpickle.dumps((registered, workload)))
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
        current_process().authkey = pickle.load(stream)  # proxies of a multiprocessing.Manager need it as they load
        registered, workload = pickle.load(stream)
    except Exception as error:
        raise JobInvalid(
            f"a worker could not load the environments or the policy: {error!r}; put the code that they need into a "
            'module that the worker can import, or choose start_method="fork"'
        ) from error
    for name, spec in registered.items():
        gymnasium.registry.setdefault(name, spec)
    return workload  # type: ignore[no-any-return]


def _is_gymnasiums(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.")
