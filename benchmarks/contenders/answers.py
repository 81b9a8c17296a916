"""One contender in a separate process: `python -P -m answers MODULE.FUNCTION MEASURE WORK`.

It writes a line `{}` when it is ready; then for each line `{"seconds": s}` that comes in one line of figures. Started
and asked by `benchmarks/peers.py`, which puts this folder on the path.
"""

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from measures import MEASURES
from work import Work


def main(contender: str, measure: str, work: str) -> None:
    """Answer requests until they end."""
    # Output of libraries goes to stderr: stdout is for answers.
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        torch.set_num_threads(1)
        module, _, function = contender.rpartition(".")
        start: Callable[[Work], AbstractContextManager[Any]] = getattr(importlib.import_module(module), function)
        with MEASURES[measure](start, Work(**json.loads(work))) as figures:
            print("{}", file=answers)
            for line in sys.stdin:
                gc.collect()
                time.sleep(0.05)
                print(json.dumps(figures(json.loads(line)["seconds"])), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
