"""Repeated requests to NATS: until it answers, or periodically."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.errors import Error as NatsError

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_WAIT_S, LONGEST_RETRY_WAIT_S = 0.2, 2.0
POLL_EVERY_S, LONGEST_POLL_S = 2.0, 10.0
MOST_POLLS_PER_S = 20.0  # of up to 200 workers together: more would cost their server more than their batches
WARN_AFTER_S = 30.0  # of a NATS that does not answer, stores nothing, or has no space


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Await `ask()` again and again until NATS answers: a server that has just come back may not be ready yet."""
    began_s, wait_s, warned = time.monotonic(), RETRY_WAIT_S, False
    while True:
        try:
            return await ask()
        except (NatsError, TimeoutError, OSError) as error:
            log.debug("no answer: %r; asking again", error)
            if not warned and time.monotonic() - began_s >= WARN_AFTER_S:
                warned = True
                log.warning("NATS has not answered for %g s (%r); asking on", WARN_AFTER_S, error)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_RETRY_WAIT_S)


async def poll(read: Callable[[], Awaitable[None]], processes: Callable[[], int] = lambda: 1) -> None:
    """Await `read()` periodically, until it raises an error that is not NATS's.

    `processes` returns how many of this kind a job has: with more of them, each reads less often.

    A published message is not stored at the same moment: a process that subscribes just after the publication, and
    reads just before the storage, misses it. So subscribers also read their state now and then.
    """
    while True:
        try:
            await read()
        except (NatsError, TimeoutError, OSError) as error:
            log.debug("polling: %r", error)
        await asyncio.sleep(interval_s(processes()))


def interval_s(processes: int) -> float:
    """Return the seconds between two polls of each of these processes."""
    return min(LONGEST_POLL_S, max(POLL_EVERY_S, processes / MOST_POLLS_PER_S))
