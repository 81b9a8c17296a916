"""A function in a thread that ends with the program, whatever it does."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(function: Callable[[], T], name: str) -> "Future[T]":
    """Call a function in a daemon thread of this name. Returns its result or its error, which may come later.

    Unlike the threads of an executor, this one delays no exit of the program.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:  # raised where the result is taken
            result.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return result
