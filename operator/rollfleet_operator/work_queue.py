"""What is to be looked at: each thing once, however often it was asked for, and by one at a time."""

import asyncio
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 60.0

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys, in the order in which they were first asked for. For one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[K, None] = {}
        self._taken: set[K] = set()
        self._asked_again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        """How many wait now."""
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Ask for a look. If somebody looks just now, there will be another look afterwards."""
        if key in self._taken:
            self._asked_again.add(key)
            return
        self._waiting.setdefault(key)
        self._some.set()

    def add_later(self, key: K, delay_s: float) -> None:
        """Ask for a look in a while. Of several such wishes the soonest counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + delay_s:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(delay_s, self._due, key)

    async def take(self) -> K:
        """The next key; waits for one. Whoever takes it calls `done` or `failed`."""
        while not self._waiting:
            self._some.clear()
            await self._some.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._taken.add(key)
        self._forget_timer(key)
        return key

    def done(self, key: K, again_s: float | None = None) -> None:
        """It was looked at.

        Args:
            key: As it was taken.
            again_s: Look again after so many seconds; None: not before it is asked for.
        """
        self._failures.pop(key, None)
        self._release(key, again_s)

    def failed(self, key: K) -> float:
        """It could not be looked at: it is tried again, each time later. Returns after how many seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = min(FIRST_RETRY_S * 2.0 ** min(failures, 16), LAST_RETRY_S)
        self._release(key, delay_s)
        return delay_s

    def close(self) -> None:
        """Forget all that was asked for later."""
        for key in list(self._timers):
            self._forget_timer(key)

    def _release(self, key: K, again_s: float | None) -> None:
        self._taken.discard(key)
        if key in self._asked_again:
            self._asked_again.discard(key)
            self.add(key)
        elif again_s is not None:
            self.add_later(key, again_s)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _forget_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
