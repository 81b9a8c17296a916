"""A program's reaction to Ctrl-C and SIGTERM: stop in order at the first, at once at a later one."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

EXIT_OF_SIGNALS = 128  # added to a signal's number, as shells report it: 130 after Ctrl-C, 143 after SIGTERM


class StopSignal:
    """Handlers for the signals that stop a program. Install them in the main thread.

    Args:
        on_first: Called once, at the first signal: begin to stop.
        on_later: Called at each later signal. Default: ignore it.

    Attributes:
        number: The signal that came first. None: no signal has come.

    Example:
        >>> stop = StopSignal(lambda: None)
        >>> signal.raise_signal(signal.SIGTERM)
        >>> stop.exit_code
        143
    """

    def __init__(self, on_first: Callable[[], None], on_later: Callable[[], None] = lambda: None) -> None:
        self.number: int | None = None
        self._on_first, self._on_later = on_first, on_later
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    @property
    def exit_code(self) -> int:
        """The exit code of a program that the signal stopped. 0: no signal has come."""
        return 0 if self.number is None else EXIT_OF_SIGNALS + self.number

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            self._on_first()
        else:
            self._on_later()


async def until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Return the exit code of `work`. The first signal cancels it; its clean-up is not interrupted by later ones."""
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(work)

    def cancel() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(running.cancel)

    stop = StopSignal(cancel)
    try:
        return await running
    except asyncio.CancelledError:
        return stop.exit_code
