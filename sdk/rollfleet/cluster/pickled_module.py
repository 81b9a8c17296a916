"""Modules that hold one pickled callable: `rollfleet.cluster.pickled` writes them, and a worker of the job calls it."""

import base64
import importlib
import pickle
import sys
import zlib
from typing import Any


def written(data: str) -> str:
    """Return the source of a module.

    Args:
        data: The callable: pickled, compressed by zlib, in base64.
    """
    return f"PYTHON = {sys.version_info[:2]}\nDATA = '{data}'\n"


def call(*, module: str) -> Any:
    """Call the callable of a module: the entry point that a job names.

    Raises:
        RuntimeError: Another version of Python has written it.
    """
    found = importlib.import_module(module)
    if sys.version_info[:2] != found.PYTHON:
        theirs, ours = (".".join(map(str, each[:2])) for each in (found.PYTHON, sys.version_info))
        raise RuntimeError(
            f"the program runs on Python {theirs}, and this worker's image has {ours}: use an image with Python "
            f"{theirs}, or pass functions of modules to `rollfleet.Collector`"
        )
    return pickle.loads(zlib.decompress(base64.b64decode(found.DATA)))()
