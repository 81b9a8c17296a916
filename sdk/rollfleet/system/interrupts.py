"""Ctrl-C in work that must not be cut: it waits for the end of the work, or for a place where nothing can be lost."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_innermost: "Uninterrupted | None" = None  # of the main thread: Python raises KeyboardInterrupt in no other


class Uninterrupted:
    """A context that Ctrl-C does not cut: it is raised at the end, or in an `interruptible` part.

    A second Ctrl-C is raised at once. In threads other than the main one, and where SIGINT is ignored or ends the
    program, the context does nothing.

    Example:
        >>> done = []
        >>> try:
        ...     with Uninterrupted():
        ...         signal.raise_signal(signal.SIGINT)
        ...         done.append("all of it")
        ... except KeyboardInterrupt:
        ...     print(done)
        ['all of it']
    """

    def __init__(self) -> None:
        self._handler: Any = None  # the program's own; None: this context does nothing
        self._outer: Uninterrupted | None = None
        self._asked: tuple[int, FrameType | None] | None = None
        self.open = False  # whether Ctrl-C is raised at once

    def __enter__(self) -> None:
        """Begin the work."""
        global _innermost
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or (_innermost is not None and not _innermost.open):
            return
        self._handler, self._outer = handler, _innermost
        signal.signal(signal.SIGINT, self._handle)
        _innermost = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the work. Raise KeyboardInterrupt if Ctrl-C was pressed meanwhile."""
        global _innermost
        if self._handler is None:
            return
        _innermost = self._outer
        if signal.getsignal(signal.SIGINT) == self._handle:  # else the work has set another handler
            signal.signal(signal.SIGINT, self._handler)
        self.raise_if_asked()

    def raise_if_asked(self) -> None:
        """Raise KeyboardInterrupt, or call the program's own handler, if Ctrl-C was pressed meanwhile."""
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self._handler(*asked)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self._asked = self._asked is not None, (number, frame)
        if self.open or again:
            self.raise_if_asked()


@contextmanager
def interruptible() -> Iterator[None]:
    """A part of an `Uninterrupted` context in which Ctrl-C is raised at once, also one that came before."""
    shield = _innermost
    if shield is None or shield.open or threading.current_thread() is not threading.main_thread():
        yield
        return
    shield.open = True
    try:
        shield.raise_if_asked()
        yield
    finally:
        shield.open = False
