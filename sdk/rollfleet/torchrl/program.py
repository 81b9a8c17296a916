"""Runs a program of TorchRL's with the collectors of this package in place of TorchRL's own."""

import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torchrl.collectors
import torchrl.collectors.distributed

import rollfleet.torchrl as ours
from rollfleet.torchrl.signatures import elsewhere


def install() -> None:
    """Set the classes of this package on all loaded modules of TorchRL that have its own under a public name.

    Its own classes are not changed, and stay where TorchRL derives from them.
    """
    homes = (torchrl.collectors, torchrl.collectors.distributed)
    replaced = {
        vars(home)[name]: getattr(ours, name)
        for home in homes
        for name in ours.__all__
        if name.endswith("Collector") and "Data" not in name and name in vars(home)
    }
    for path, module in list(sys.modules.items()):
        if path.startswith("torchrl.") and isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if isinstance(value, type) and value in replaced:
                    setattr(module, name, replaced[value])
    for home in homes:
        for name in ours.__all__:
            if "DataCollector" in name:
                setattr(home, name, getattr(ours, name))


def run(program: str, args: list[str], place: dict[str, Any]) -> None:
    """Run a program as `__main__`, with these classes, whose collectors run at a `place`: see `elsewhere`."""
    install()
    elsewhere.update({name: value for name, value in place.items() if value is not None})
    sys.argv = [program, *args]
    sys.path.insert(0, str(Path(program).resolve().parent))
    runpy.run_path(program, run_name="__main__")
