"""Concurrent calls, in threads, as several processes would make them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0


def begin(go: Callable[[T], Any], what: T) -> "Future[Any]":
    """Start a call in a daemon thread: if it hangs, the program still exits."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(go(what))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def at_once(go: Callable[[T], Any], these: Sequence[T]) -> list[Any]:
    """Call the function with each value at the same time. Returns the results in order."""
    return [each.result(PATIENCE_S) for each in [begin(go, each) for each in these]]
