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


def alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
