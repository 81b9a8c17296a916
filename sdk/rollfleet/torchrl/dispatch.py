"""`Collector(num_collectors=, backend=, ...)` as TorchRL dispatches it to its other classes."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Final

from torchrl.envs import EnvBase

from rollfleet.torchrl.placement import present
from rollfleet.torchrl.signatures import PLACE

_BACKENDS: Final = ("direct", "process", "ray", "rpc", "distributed", "submitit")
_SELECTORS: Final = ("backend", "backend_options", "num_collectors", "sync")
_ALSO: Final = {"multiprocessing": "process"}


def dispatched(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the collector that the arguments of `Collector` ask for; None: one in this process.

    Raises:
        TypeError: An argument has another type.
        ValueError: The arguments contradict each other.
    """
    from rollfleet.torchrl import DistributedCollector, MultiCollector, RayCollector, RPCCollector
    from rollfleet.torchrl.processes import SpreadCollector

    if len(args) > 2:
        raise TypeError("Collector accepts at most create_env_fn and policy positionally.")
    rest = {name: value for name, value in kwargs.items() if name not in _SELECTORS}
    backend, written, count, sync = (kwargs.get(name) for name in _SELECTORS)
    if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
        raise TypeError("num_collectors must be a positive integer.")
    if count is not None and count < 1:
        raise ValueError("num_collectors must be a positive integer.")
    moved = present().moves or any(kwargs.get(name) is not None for name in PLACE)
    spread = moved and backend is None and count is None and sync is None
    if backend is None:
        backend = "process" if count is not None or spread else "direct"
    backend = _ALSO.get(backend, backend)
    if backend not in _BACKENDS:
        raise ValueError(f"Collector does not support backend={backend!r}. Expected one of {sorted(_BACKENDS)}.")
    options = dict(written or {})
    if reserved := sorted(set(_SELECTORS[1:]).intersection(options)):
        raise ValueError(f"backend_options contains reserved selector keys: {reserved}.")
    if twice := sorted((options.keys() & rest.keys()) | (options.keys() & {*("create_env_fn", "policy")[: len(args)]})):
        raise ValueError(f"Backend options duplicate top-level collector arguments: {twice}.")
    make = args[0] if args else rest.pop("create_env_fn", None)
    makes = list(make) if isinstance(make, Sequence) and not isinstance(make, EnvBase) else None
    if backend == "direct":
        if count not in (None, 1):
            raise ValueError("backend='direct' supports at most one collector.")
        if sync is not None or options:
            raise ValueError("sync and backend_options are only valid for non-direct collectors.")
        if makes is not None and len(makes) != 1:
            raise ValueError("backend='direct' requires exactly one environment constructor.")
        return None
    if sync is not None and not isinstance(sync, bool):
        raise TypeError("sync must be a boolean or None.")
    if makes is not None and not makes:
        raise ValueError("create_env_fn must contain at least one environment.")
    if makes is not None and count not in (None, len(makes)):
        raise ValueError(f"num_collectors does not match the number of environment constructors: {count}")
    makes = [make] * (count or 1) if makes is None else makes
    if backend == "submitit" and options.setdefault("launcher", rest.pop("launcher", "submitit")) != "submitit":
        raise ValueError("backend='submitit' requires launcher='submitit'.")
    target = {"process": MultiCollector, "ray": RayCollector, "rpc": RPCCollector}.get(backend, DistributedCollector)
    target = SpreadCollector if spread else target
    known = signature(target).parameters
    general = signature(_generic()).parameters
    rest = {
        name: value
        for name, value in rest.items()
        if name in known or name not in general or value != general[name].default
    }
    more: dict[str, Any] = {"num_collectors": len(makes)} if backend == "ray" else {}
    if not spread:
        more["sync"] = bool(sync)
    return target(makes, *args[1:], **more, **options, **rest)


def _generic() -> Any:
    from rollfleet.torchrl.single import Collector

    return Collector
