"""The CPUs that this process may use, those that the scheduler and the cgroup allow, and threads that fit them."""

import ctypes
import math
import os
import sys
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
_MAPS = Path("/proc/self/maps")
_OPENBLAS = "openblas_{}_num_threads", "openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads64_"


def available_cpus(cgroup: Path = CGROUP) -> int:
    """Count the CPUs that this process may use, at least 1. A quota's fraction of a CPU counts as a whole one."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(affinity, _quota(cgroup))))


def _quota(cgroup: Path) -> float:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()  # cgroup v2
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf


def limit_threads(count: int) -> None:
    """Let torch compute with this many threads, and OpenBLAS, loaded now or later, with no more.

    By default each process takes one for each CPU of the machine. A fork needs `limit_threads(1)`: torch waits forever
    for threads that only its parent has.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        given = os.environ.get(name, "")
        os.environ[name] = given if given.isdigit() and int(given) <= count else str(count)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
    for library in _openblas():
        for name in _OPENBLAS:
            if (read := getattr(library, name.format("get"), None)) is not None and read() > count:
                getattr(library, name.format("set"))(count)


def _openblas() -> list[ctypes.CDLL]:
    """Return the loaded libraries of that name: numpy's wheel and scipy's have one each."""
    lines = _MAPS.read_text().splitlines() if _MAPS.exists() else []
    paths = {line.split(maxsplit=5)[-1] for line in lines if "openblas" in line}
    return [ctypes.CDLL(path) for path in paths if Path(path).exists()]
