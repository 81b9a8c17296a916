"""A queue of keys to reconcile: each key once, however often it is added, and in one task at a time.

Edits by users overtake all other keys: with hundreds of running jobs some of those always wait. But every second key is
one of those, so that no user's edits hold up all other jobs.
"""

import asyncio
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 60.0

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys in the order of their first addition. For one event loop.

    Example:
        >>> queue = WorkQueue[str]()
        >>> queue.add("a")
        >>> key = asyncio.run(queue.take())
        >>> queue.done(key)
        >>> key, len(queue)
        ('a', 0)
    """

    def __init__(self) -> None:
        self._waiting: dict[K, None] = {}
        self._edited: dict[K, None] = {}
        self._edited_next = True
        self._taken: set[K] = set()
        self._added_again: dict[K, bool] = {}  # with whether it was edited
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of waiting keys."""
        return len(self._waiting) + len(self._edited)

    def add(self, key: K, *, edited: bool = False) -> None:
        """Add a key, for which a user waits if `edited`. A key in process is queued again when it is done."""
        if key in self._taken:
            self._added_again[key] = edited or self._added_again.get(key, False)
            return
        if edited:
            self._waiting.pop(key, None)
            self._edited.setdefault(key)
        elif key not in self._edited:
            self._waiting.setdefault(key)
        self._some.set()

    def add_later(self, key: K, delay_s: float) -> None:
        """Add a key after a delay. Of several delays the shortest counts."""
        loop = asyncio.get_running_loop()
        if timer := self._timers.get(key):
            if timer.when() <= loop.time() + delay_s:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(delay_s, self._due, key)

    async def take(self) -> K:
        """Wait for a key and return it. The caller must then call `done` or `failed`."""
        while not len(self):
            self._some.clear()
            await self._some.wait()
        keys = self._edited if self._edited and (self._edited_next or not self._waiting) else self._waiting
        self._edited_next = keys is self._waiting
        key = next(iter(keys))
        del keys[key]
        self._taken.add(key)
        self._cancel_timer(key)
        return key

    def done(self, key: K, next_s: float | None = None) -> None:
        """Finish a key from `take`, and add it again in `next_s` seconds; None: not by itself."""
        self._failures.pop(key, None)
        self._release(key, next_s)

    def failed(self, key: K) -> float:
        """Add a failed key again after a delay, longer each time; return the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = min(FIRST_RETRY_S * 2.0 ** min(failures, 16), LAST_RETRY_S)
        self._release(key, delay_s)
        return delay_s

    def close(self) -> None:
        """Drop all delayed keys."""
        for key in list(self._timers):
            self._cancel_timer(key)

    def _release(self, key: K, next_s: float | None) -> None:
        self._taken.discard(key)
        if key in self._added_again:
            self.add(key, edited=self._added_again.pop(key))
        elif next_s is not None:
            self.add_later(key, next_s)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel_timer(self, key: K) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
