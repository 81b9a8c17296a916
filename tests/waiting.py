"""Waits for what other threads and processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(look: Callable[[], T | None], timeout_s: float = 60.0) -> T:
    """Return what `look` returns as soon as it is true."""
    end = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.005)
    return found
