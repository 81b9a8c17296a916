"""Runs a program of TorchRL's with the collectors of this package in place of TorchRL's own."""

import runpy
import sys
from pathlib import Path
from typing import Any

import torchrl.collectors
import torchrl.collectors.distributed

import rollfleet.torchrl as ours
from rollfleet.torchrl.arguments import elsewhere


def install() -> None:
    """Set the classes of this package on TorchRL's packages of collectors, and where its loaded modules have its own.

    Its own classes are not changed, and stay where TorchRL derives from them.
    """
    homes = (torchrl.collectors, torchrl.collectors.distributed)
    names = [name for name in ours.__all__ if name.endswith("Collector")]
    for path, module in list(sys.modules.items()):
        if path.startswith("torchrl."):
            for name in names:
                if module in homes or name in vars(module):
                    setattr(module, name, getattr(ours, name))


def run(program: str, args: list[str], place: dict[str, Any]) -> None:
    """Run a program as `__main__`, with these classes, whose collectors run at a `place`: see `elsewhere`."""
    install()
    elsewhere.update({name: value for name, value in place.items() if value is not None})
    sys.argv = [program, *args]
    sys.path.insert(0, str(Path(program).resolve().parent))
    runpy.run_path(program, run_name="__main__")
