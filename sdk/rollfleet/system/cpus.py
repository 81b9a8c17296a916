"""The CPUs that this process may use: those that the scheduler and the cgroup allow, not those of the machine."""

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


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
