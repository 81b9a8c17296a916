"""`Collector(num_collectors=, backend=, ...)` as TorchRL dispatches it to its other classes."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Final

from rollfleet.torchrl.arguments import PLACE, elsewhere
from rollfleet.torchrl.environments import listed

_SELECTORS: Final = ("backend", "backend_options", "num_collectors", "sync")
_CLASSES: Final = {
    "process": "MultiCollector",
    "multiprocessing": "MultiCollector",
    "ray": "RayCollector",
    "rpc": "RPCCollector",
    "distributed": "DistributedCollector",
    "submitit": "DistributedCollector",
}
"""The class of each backend but "direct", which is this process."""


def dispatched(generic: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the collector that the arguments of `generic`, which is `Collector`, ask for; None: one in this process.

    Raises:
        TypeError: There are too many arguments, or one is written twice.
        ValueError: The arguments contradict each other.
    """
    import rollfleet.torchrl as classes

    rest = dict(kwargs)
    backend, options, count, sync = (rest.pop(name, None) for name in _SELECTORS)
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError("num_collectors must be a positive integer.")
    placed = bool(elsewhere) or any(kwargs.get(name) is not None for name in PLACE)
    spread = placed and (backend, count, sync) == (None, None, None)
    backend = backend or ("process" if spread or count else "direct")
    makes = listed(args[0] if args else rest.pop("create_env_fn", None))
    if backend == "direct":
        if (count or 1) > 1 or len(makes) > 1 or sync is not None or options:
            raise ValueError("backend='direct' is one collector of one environment, without sync and backend_options.")
        return None
    if backend not in _CLASSES:
        raise ValueError(f"Collector does not support backend={backend!r}. Expected one of {['direct', *_CLASSES]}.")
    makes = makes * (count or 1) if len(makes) == 1 else makes
    if len(makes) != (count or len(makes)):
        raise ValueError(f"num_collectors does not match the number of environment constructors: {count}")
    target = getattr(classes, _CLASSES[backend])
    known, general = signature(target).parameters, signature(generic).parameters
    rest = {
        name: value
        for name, value in rest.items()
        if name in known or name not in general or value != general[name].default
    }
    rest |= {"sync": spread or bool(sync)}
    if spread:  # in one process, new weights act at once
        rest |= {"cat_results": "envs", "update_at_each_batch": True}
    return target(makes, *args[1:], **(options or {}), **rest)
