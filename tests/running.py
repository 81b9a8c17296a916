"""A program that a test starts, and that no failure of the test leaves behind."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil


@contextmanager
def running(*command: str, **options: Any) -> "Iterator[subprocess.Popen[str]]":
    """Start a program, its output as text. If it still runs at the end of the block, kill it.

    `Popen` as a context manager would wait for it: a test that fails while the program hangs would hang, too.
    """
    with subprocess.Popen(command, text=True, **options) as program:
        try:
            yield program
        finally:
            program.kill()


def output_of(*command: object, **options: Any) -> str:
    """Run a program to its end, which must be in order. Return its output."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int]) -> bool:
    """Wait until these processes have ended, 10 s at most. Return whether they have."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(processes, timeout=10)[1]
