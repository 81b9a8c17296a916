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


_deferrals: list[_Deferral] = []
"""Of the blocks that the main thread is in. Only it reads or changes them."""


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
    if (_deferrals and not _deferrals[-1].open) or threading.current_thread() is not threading.main_thread():
        yield
        return
    own = signal.getsignal(signal.SIGINT)
    if not callable(own):
        yield
        return
    deferral = _Deferral(own)
    signal.signal(signal.SIGINT, deferral)
    _deferrals.append(deferral)  # from here on no Ctrl-C comes between
    try:
        yield
    finally:
        _deferrals.pop()
        if (another := signal.signal(signal.SIGINT, own)) is not deferral:  # which the work has set
            signal.signal(signal.SIGINT, another)
        deferral.release()


@contextmanager
def interruptible() -> Iterator[None]:
    """A part of an `uninterrupted` block in which Ctrl-C is raised at once, also one that came before."""
    if not _deferrals or _deferrals[-1].open or threading.current_thread() is not threading.main_thread():
        yield
        return
    deferral = _deferrals[-1]
    deferral.open = True
    try:
        deferral.release()
        yield
    finally:
        deferral.open = False
