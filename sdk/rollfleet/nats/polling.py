"""Repeated requests to NATS: until it answers, or periodically."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

log = logging.getLogger(__name__)

RETRY_WAIT_S = 0.2
POLL_EVERY_S = 2.0


async def insist(ask: Callable[[], Awaitable[None]]) -> None:
    """Await `ask()` again and again until NATS answers: a server that has just come back may not be ready yet."""
    while True:
        try:
            await ask()
        except (NatsError, TimeoutError, OSError) as error:
            log.debug("no answer: %r; asking again", error)
            await asyncio.sleep(RETRY_WAIT_S)
        else:
            return


async def poll(
    read: Callable[[], Awaitable[None]],
    *,
    every_s: float = POLL_EVERY_S,
    on_missing: Callable[[float], None] | None = None,
) -> None:
    """Await `read()` periodically, until it or `on_missing` raises an error that is not NATS's.

    A published message is not stored at the same moment: a process that subscribes just after the publication, and
    reads just before the storage, misses it. So subscribers also read their state now and then.

    Args:
        read: Reads the stored state.
        every_s: Seconds between two reads.
        on_missing: Called with the seconds for which no stream has answered: the job was deleted, or NATS is not ready.
    """
    missing_s = 0.0
    while True:
        try:
            await read()
        except NoRespondersError:
            missing_s += every_s
            if on_missing:
                on_missing(missing_s)
        except (NatsError, TimeoutError, OSError) as error:
            log.debug("polling: %r", error)
        else:
            missing_s = 0.0
        await asyncio.sleep(every_s)
