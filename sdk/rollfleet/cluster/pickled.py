"""Callables that have no name in a module, such as lambdas and closures of a program, as files of a job's source.

A job names code (see `sources`). For a program that was not written for that, its callables travel as bytes of
cloudpickle in the job's own ConfigMap, with the modules beside the program. Only a job's author writes that ConfigMap.
"""

import base64
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import xxhash

from rollfleet.cluster.pickled_module import written
from rollfleet.cluster.sources import Named, Sources, is_own

ENTRYPOINT = "rollfleet.cluster.pickled_module:call"


@dataclass(frozen=True, slots=True)
class Pickled:
    """A callable without arguments, for `env` or `policy_factory` of a collector on a cluster.

    Example:
        >>> sources = Sources()
        >>> named = Pickled(lambda: 3).named(sources)
        >>> named.entrypoint, list(sources.files) == [f"{named.kwargs['module']}.py"]
        ('rollfleet.cluster.pickled_module:call', True)
    """

    make: Callable[[], Any]

    def __call__(self) -> Any:
        """Call it here."""
        return self.make()

    def named(self, sources: Sources) -> Named:
        """Add its bytes to a job's source, and return its name there."""
        own = [sys.modules[name] for name in list(sys.modules) if name != "__main__" and is_own(name)]
        for module in own:
            cloudpickle.register_pickle_by_value(module)
        try:
            data = zlib.compress(cloudpickle.dumps(self.make))
        finally:
            for module in own:
                cloudpickle.unregister_pickle_by_value(module)
        name = f"pickled_{xxhash.xxh64_hexdigest(data)}"
        sources.files[f"{name}.py"] = written(base64.b64encode(data).decode())
        return Named(entrypoint=ENTRYPOINT, kwargs={"module": name})
