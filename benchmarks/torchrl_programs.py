"""Frames a second of a program that iterates over a collector of TorchRL's, training included, for 40 s; and CPU time.

    python benchmarks/torchrl_programs.py [--theirs] [--skip 2] [--workers 2] PROGRAM [ARGUMENT ...]

The time begins after `--skip` batches. The CPU time is that of this process and of those below it, and the part of it
while the program waits for a batch: other work on the machine disturbs it little. `--theirs` keeps TorchRL's own
collectors. docs/coming-from-torchrl.md has the figures.
"""

import argparse
import sys
import time
from typing import Any

import psutil
from torchrl.collectors import BaseCollector

from rollfleet.torchrl import collecting, program


def _cpu_s() -> float:
    below = [each.cpu_times() for each in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(each.user + each.system for each in below)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--theirs", action="store_true")
    parser.add_argument("--skip", type=int, default=2)
    options, sys.argv[1:] = parser.parse_known_args()
    measured: Any = BaseCollector if options.theirs else collecting.FleetCollector

    def _timed(self: Any, iterate: Any = measured.__iter__) -> Any:
        asked_s = _cpu_s()
        for number, batch in enumerate(iterate(self), 1):
            came_s = _cpu_s()
            if number <= options.skip:
                began_s, began_cpu_s, collecting_s, frames = time.monotonic(), came_s, 0.0, 0
            else:
                collecting_s, frames = collecting_s + came_s - asked_s, frames + batch.numel()
                if (lasted_s := time.monotonic() - began_s) > 40:
                    each, own = (1e6 * cpu_s / frames for cpu_s in (came_s - began_cpu_s, collecting_s))
                    sys.exit(f"{frames / lasted_s:.1f} frames/s, CPU {each:.0f} us a frame, collecting {own:.0f}")
            yield batch
            asked_s = _cpu_s()

    measured.__iter__ = _timed
    if options.theirs:
        program.install = lambda: None
    program.main()
