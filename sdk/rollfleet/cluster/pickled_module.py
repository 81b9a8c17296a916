"""Modules that hold one pickled value: `rollfleet.cluster.sources` writes them, a worker of the job imports them."""

import base64
import pickle
import sys
import zlib
from typing import Any


def written(data: str) -> str:
    """Return the source of a module with the name `value`; `data` is pickled, compressed by zlib, in base64."""
    python = sys.version_info[:2]
    return f"from rollfleet.cluster.pickled_module import loaded\n\nvalue = loaded({python}, {data!r})\n"


def loaded(python: tuple[int, int], data: str) -> Any:
    """Return the value of a module.

    Raises:
        RuntimeError: Another version of Python has written it.
    """
    if sys.version_info[:2] != python:
        theirs, ours = (".".join(map(str, each[:2])) for each in (python, sys.version_info))
        raise RuntimeError(
            f"the program runs on Python {theirs}, and this worker's image has {ours}: use an image with Python "
            f"{theirs}, or pass functions of modules to `rollfleet.Collector`"
        )
    return pickle.loads(zlib.decompress(base64.b64decode(data)))
