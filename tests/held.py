"""What this process holds that must not outlive its user: threads, descriptors, child processes, memory with a name.

Compare two moments as sets, not as counts: what another test left goes at any time, and only new things are one's own.
"""

import gc
import os
import threading
from pathlib import Path

import psutil

LONGEST_END_S = 20.0


def held() -> set[object]:
    """Return all that this process holds, after garbage was collected."""
    gc.collect()
    children = psutil.Process().children()  # theirs are not all ours: a browser of other tests starts some at any time
    return {*threading.enumerate(), *descriptors(), *named_memory(), *children}


def descriptors() -> set[tuple[int, int, int]]:
    """Return each open descriptor: its number, and the device and inode, so that a reused number differs."""
    found = set()
    for name in os.listdir("/dev/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:  # of the listing itself, or closed since
            continue
        found.add((int(name), status.st_dev, status.st_ino))
    return found


def named_memory() -> set[str]:
    """Return the files in /dev/shm that this process maps. Other processes' files are there, too."""
    maps = Path("/proc/self/maps")  # other systems than Linux have neither
    paths = {line.partition("/")[2] for line in maps.read_text().splitlines()} if maps.exists() else set()
    return {f"/{path}" for path in paths if path.startswith("dev/shm/") and not path.endswith("(deleted)")}


def left_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return our threads that began since and do not end."""
    left = [each for each in threading.enumerate() if each not in before and each.name.startswith("rollfleet-")]
    for thread in left:
        thread.join(LONGEST_END_S)
    return [each for each in left if each.is_alive()]
