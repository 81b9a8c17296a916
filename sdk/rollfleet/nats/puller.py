"""Pulls messages from the work queue, a bounded number of bytes at a time.

NATS would push as fast as it can; a learner that sleeps would then hold the whole queue in memory. Instead, a few
requests, each for a number of bytes, are kept open. Each is renewed when it is used up, unless `paused()` is true.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

log = logging.getLogger(__name__)

WINDOW_BYTES = 16 << 20
OPEN_REQUESTS = 2
EXPIRES_S = 10.0
_MAX_MESSAGES = 1_000_000  # never reached: a request ends with its bytes, and the server reports that


class Puller:
    """Keeps requests open at one consumer, and calls `on_message` for each message, on the connection's loop.

    Args:
        client: A connected client.
        stream: The stream's name.
        consumer: The consumer's name.
        on_message: Takes a message; must not block.
        on_deleted: Called once if the consumer was deleted.
        on_unavailable: Called if no server answers for the consumer; the puller holds until `resume`.
        paused: Whether to request nothing more. Call `wake` when that changes.
    """

    def __init__(
        self,
        client: Client,
        *,
        stream: str,
        consumer: str,
        on_message: Callable[[Msg], None],
        on_deleted: Callable[[], None],
        on_unavailable: Callable[[], None],
        paused: Callable[[], bool],
    ) -> None:
        self._client = client
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._on_message = on_message
        self._on_deleted, self._on_unavailable = on_deleted, on_unavailable
        self._paused = paused
        self._open: dict[str, float] = {}  # reply subject of each open request -> loop time at which to give it up
        self._wake = asyncio.Event()
        self._inbox = client.new_inbox()
        self._count = 0
        self._deleted = self._held = False
        request = {
            "batch": _MAX_MESSAGES,
            "max_bytes": max(WINDOW_BYTES // OPEN_REQUESTS, 2 * client.max_payload),
            "expires": int(EXPIRES_S * 1e9),
        }
        self._request = json.dumps(request).encode()

    async def run(self) -> None:
        """Pull until cancelled."""
        subscription = await self._client.subscribe(
            f"{self._inbox}.*", cb=self._on_reply, pending_bytes_limit=0, pending_msgs_limit=0
        )
        try:
            loop = asyncio.get_running_loop()
            while not self._deleted:
                self._wake.clear()
                now = loop.time()
                self._open = {inbox: until for inbox, until in self._open.items() if until > now}
                while len(self._open) < OPEN_REQUESTS and not (self._held or self._paused()):
                    if not self._client.is_connected:
                        break
                    await self._request_more(now)
                await self._sleep(min(self._open.values(), default=now + 1.0) - now)
        finally:
            if not self._client.is_closed:
                await subscription.unsubscribe()

    def wake(self) -> None:
        """Check `paused()` again."""
        self._wake.set()

    def hold(self) -> None:
        """Request nothing until `resume`, and ignore the answers to open requests."""
        self._held = True
        self._open.clear()

    def resume(self) -> None:
        """Request messages again."""
        self._held = False
        self._wake.set()

    async def _request_more(self, now: float) -> None:
        self._count += 1
        inbox = f"{self._inbox}.{self._count}"
        self._open[inbox] = now + EXPIRES_S + 2.0  # the server reports the expiry, unless that report was lost
        await self._client.publish(self._subject, self._request, reply=inbox)

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def _on_reply(self, message: Msg) -> None:
        if message.reply:
            self._on_message(message)
            return
        if self._open.pop(message.subject, None) is None:
            return
        headers: dict[Any, str] = message.headers or {}
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == "409" and "Deleted" in text:
            self._deleted = True
            self._on_deleted()
        elif status == "503":  # asking again at once would be answered at once
            self.hold()
            self._on_unavailable()
        elif status not in ("404", "408", "409"):
            log.warning("unexpected reply to a pull request: %s %s", status, text)
        self._wake.set()
