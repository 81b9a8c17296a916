"""Concurrent calls, in threads, as several processes would make them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from rollfleet.system.background import in_background

T = TypeVar("T")

PATIENCE_S = 60.0


def begin(go: Callable[[T], Any], what: T) -> "Future[Any]":
    """Start a call in a daemon thread: if it hangs, the program still exits."""
    return in_background(partial(go, what), "concurrent call")


def at_once(go: Callable[[T], Any], these: Sequence[T]) -> list[Any]:
    """Call the function with each value at the same time. Returns the results in order."""
    return [each.result(PATIENCE_S) for each in [begin(go, each) for each in these]]
