"""The port of the page, and the task that saves what it shows on NATS."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

from rollfleet_operator.api import Api
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats_port import NatsPort
from rollfleet_operator.ui.fleet import Fleet
from rollfleet_operator.ui.guard import ReviewGuard
from rollfleet_ui.server import page, served

log = logging.getLogger(__name__)

SAVE_S: Final = 60.0
"""Seconds between two rounds of saves: what a killed operator loses of its jobs' histories."""

PAUSE_S: Final = 0.1
"""Seconds between two saves of a round: packing a page stops the loop for some milliseconds."""

REFRESH_S: Final = 1.0
"""Seconds between two reads of the heartbeats of jobs that are looked at."""

RESTORE_S: Final = 2.0
"""The most seconds for which the operator waits for saved pages at its start. Later ones are put in front."""

END_S: Final = 5.0
"""The most seconds for the last round of saves."""


class Page:
    """The page of an operator that leads.

    Args:
        port: The port, on all addresses.
        fleet: What it shows.
        api: The API server, for reviews of tokens and rights. It is closed at the end.
        nats: Keeps what it shows.
    """

    def __init__(self, port: int, fleet: Fleet, api: Api, nats: NatsPort) -> None:
        self._port, self._fleet, self._api, self._nats = port, fleet, api, nats
        self._open = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._restored = asyncio.Event()

    async def start(self) -> None:
        """Restore what an earlier operator saved, unless NATS is away, and start to listen."""
        loops = (self._repeat(self._save, SAVE_S), self._repeat(self._refresh, REFRESH_S))
        self._tasks = [asyncio.create_task(each) for each in loops]
        with suppress(TimeoutError):
            await asyncio.wait_for(self._restored.wait(), RESTORE_S)
        served_page = served(page(self._fleet, ReviewGuard(self._api)), port=self._port, host=None)
        await self._open.enter_async_context(served_page)

    async def stop(self) -> None:
        """Close the port, and save what has changed."""
        await self._open.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(END_S):
                await self._save(pause_s=0)
        except (TimeoutError, NatsUnavailable) as error:
            log.warning("not all pages of jobs were saved: %r", error)
        await self._api.close()

    async def _repeat(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            try:
                await work()
            except NatsUnavailable as error:
                log.warning("pages of jobs were not saved: %s", error)
            except Exception:
                log.exception("error in the page")
            await asyncio.sleep(every_s)

    async def _refresh(self) -> None:
        with suppress(NatsUnavailable):  # reconciliations report it
            await self._fleet.refresh(self._nats)

    async def _save(self, *, pause_s: float = PAUSE_S) -> None:
        """Save all changed pages. What was saved before is restored first: it must not be replaced by less.

        Raises:
            NatsUnavailable: NATS is away.
        """
        if not self._restored.is_set():
            self._fleet.restore(await self._nats.pages())
            self._restored.set()
        for key in self._fleet.unsaved():
            with self._fleet.saving(key) as data:
                await self._nats.save_page(key, data)
            await asyncio.sleep(pause_s)
