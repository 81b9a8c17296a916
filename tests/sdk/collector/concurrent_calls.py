"""Several things at the same time, as processes would do them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0


def begin(go: Callable[[T], Any], what: T) -> "Future[Any]":
    """Begin one; what hangs does not keep the program from ending."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(go(what))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def at_once(go: Callable[[T], Any], these: Sequence[T]) -> list[Any]:
    """Do it with each of these; what each gave."""
    return [each.result(PATIENCE_S) for each in [begin(go, each) for each in these]]
