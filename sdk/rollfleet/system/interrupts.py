"""Ctrl-C in work that must not be cut, such as reading a message: it waits for the end, or an interruptible part."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Deferral:
    """A handler of SIGINT that notes the first one, unless `open`. The second calls the program's own at once."""

    def __init__(self, own: Callable[[int, FrameType | None], Any]) -> None:
        self._own = own
        self._pressed: tuple[int, FrameType | None] | None = None
        self.open = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        again, self._pressed = self._pressed is not None, (number, frame)
        if self.open or again:
            self.release()

    def release(self) -> None:
        if self._pressed is not None:
            pressed, self._pressed = self._pressed, None
            self._own(*pressed)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Raise Ctrl-C at the end of the block, or in an `interruptible` part; a second one at once.

    Does nothing in threads other than the main one, where Python raises no KeyboardInterrupt, and where SIGINT is
    ignored or ends the program.

    Example:
        >>> done = []
        >>> try:
        ...     with uninterrupted():
        ...         signal.raise_signal(signal.SIGINT)
        ...         done.append("all of it")
        ... except KeyboardInterrupt:
        ...     print(done)
        ['all of it']
    """
    own = signal.getsignal(signal.SIGINT)
    nested = isinstance(own, _Deferral) and not own.open
    if nested or not callable(own) or threading.current_thread() is not threading.main_thread():
        yield
        return
    deferral = _Deferral(own)
    signal.signal(signal.SIGINT, deferral)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is deferral:  # else the work has set another handler
            signal.signal(signal.SIGINT, own)
        deferral.release()


@contextmanager
def interruptible() -> Iterator[None]:
    """A part of an `uninterrupted` block in which Ctrl-C is raised at once, also one that came before."""
    deferral = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not (in_main_thread and isinstance(deferral, _Deferral)) or deferral.open:
        yield
        return
    deferral.open = True
    try:
        deferral.release()
        yield
    finally:
        deferral.open = False
