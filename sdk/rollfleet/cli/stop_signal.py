"""The reaction of a command's coroutine to Ctrl-C and SIGTERM: stop in order."""

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any


async def until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Return the exit code of `work`. The first signal cancels it; its clean-up is not interrupted by later ones."""
    loop, running, first = asyncio.get_running_loop(), asyncio.ensure_future(work), 0

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        if not first and not loop.is_closed():
            first = number
            loop.call_soon_threadsafe(running.cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)  # not the loop's own handlers, which go before the process does
    try:
        return await running
    except asyncio.CancelledError:
        return 128 + first  # as shells report it: 130 after Ctrl-C, 143 after SIGTERM
