"""The port of the page, and the task that reads heartbeats for it."""

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Final

from rollfleet_operator.api import Api
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats_port import NatsPort
from rollfleet_operator.ui.fleet import Fleet
from rollfleet_operator.ui.guard import ReviewGuard
from rollfleet_ui.server import page, served

log = logging.getLogger(__name__)

REFRESH_S: Final = 1.0
"""Seconds between two reads of the heartbeats of jobs that are looked at."""


class Page:
    """The page of an operator that leads.

    Args:
        port: The port, on all addresses.
        fleet: What it shows.
        api: The API server, for reviews of tokens and rights. It is closed at the end.
        nats: Has the heartbeats.
    """

    def __init__(self, port: int, fleet: Fleet, api: Api, nats: NatsPort) -> None:
        self._port, self._fleet, self._api, self._nats = port, fleet, api, nats
        self._open = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to listen."""
        self._task = asyncio.create_task(self._keep_refreshing())
        served_page = served(page(self._fleet, ReviewGuard(self._api)), port=self._port, host=None)
        await self._open.enter_async_context(served_page)

    async def stop(self) -> None:
        """Close the port."""
        await self._open.aclose()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._api.close()

    async def _keep_refreshing(self) -> None:
        while True:
            try:
                await self._fleet.refresh(self._nats)
            except NatsUnavailable:
                pass  # reconciliations report it
            except Exception:
                log.exception("error in the page")
            await asyncio.sleep(REFRESH_S)
