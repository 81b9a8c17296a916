"""Runs a program of TorchRL's with the collectors of this package in place of TorchRL's own."""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import torchrl.collectors
import torchrl.collectors.distributed

import rollfleet.torchrl as ours
from rollfleet.torchrl.placement import Placement, place

NAMES = ("Collector", "AsyncCollector", "MultiCollector", "MultiSyncCollector", "MultiAsyncCollector")
DISTRIBUTED = ("DistributedCollector", "DistributedSyncCollector", "RPCCollector", "RayCollector")
OLD_NAMES = [name for name in ours.__all__ if "DataCollector" in name]


def install() -> None:
    """Set the classes of this package on all loaded modules of TorchRL that have its own under a public name.

    Its own classes are not changed, and stay where TorchRL derives from them.
    """
    replaced: dict[type, type] = {getattr(torchrl.collectors, name): getattr(ours, name) for name in NAMES} | {
        getattr(torchrl.collectors.distributed, name): getattr(ours, name) for name in DISTRIBUTED
    }
    for name, module in list(sys.modules.items()):
        if name.startswith("torchrl.") and isinstance(module, ModuleType):
            _replace(module, replaced)
    for name in OLD_NAMES:
        for module in (torchrl.collectors, torchrl.collectors.distributed):
            setattr(module, name, getattr(ours, name))


def _replace(module: ModuleType, replaced: dict[type, type]) -> None:
    for name, value in list(vars(module).items()):
        if isinstance(value, type) and value in replaced:
            setattr(module, name, replaced[value])


def run(program: str, args: list[str], placement: Placement) -> None:
    """Run a program as `__main__`, with these classes."""
    install()
    place(placement)
    sys.argv = [program, *args]
    sys.path.insert(0, str(Path(program).resolve().parent))
    runpy.run_path(program, run_name="__main__")
