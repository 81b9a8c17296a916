"""A workload on its way to a process of this machine: pickled, functions of the running script by their code.

So a script whose collector is made at its top level works, guarded by `if __name__ == "__main__"` or not: the process
does not run it again. What the script did besides is not repeated there, except that environments are registered.
"""

import pickle
from typing import TYPE_CHECKING

import cloudpickle  # type: ignore[import-untyped]
import gymnasium

from rollfleet.errors import JobInvalid

if TYPE_CHECKING:
    from rollfleet.transports.workload import Workload


def pickle_workload(workload: "Workload") -> bytes:
    """For `unpickle_workload`, in a process that trusts this one.

    Raises:
        JobInvalid: Something in it cannot be pickled; says what.
    """
    registered = {name: spec for name, spec in gymnasium.registry.items() if not _is_gymnasiums(spec)}
    try:
        return bytes(cloudpickle.dumps((registered, workload)))
    except Exception as error:  # pickle raises what it likes, and so do `__reduce__` and `__getstate__`
        raise JobInvalid(
            f"the environments or the policy cannot be sent to another process: {error!r}; give a function that makes "
            'them there, name one (`module:callable`), or choose start_method="fork"'
        ) from error


def unpickle_workload(data: memoryview) -> "Workload":
    """What `pickle_workload` was given; whatever comes behind it is passed over.

    Raises:
        JobInvalid: Something that it needs cannot be found here.
    """
    try:
        registered, workload = pickle.loads(data)
    except Exception as error:
        raise JobInvalid(
            f"the environments or the policy could not be made in a worker: {error!r}; what they need must be "
            'importable there: put it into a module, or choose start_method="fork"'
        ) from error
    for name, spec in registered.items():
        gymnasium.registry.setdefault(name, spec)
    return workload  # type: ignore[no-any-return]


def _is_gymnasiums(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.")
