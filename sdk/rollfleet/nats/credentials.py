"""Follows a credentials file: whoever stays connected with the ones before is cut off for good when they expire."""

import asyncio
import logging
from pathlib import Path

from nats.aio.client import Client

log = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0  # an operator renews at half of their life: hours before


async def follow_credentials(client: Client, file: Path, known: bytes) -> None:
    """Connect anew whenever the file changes: the client reads it at each connection.

    NATS ends a connection whose credentials expire, and nats-py then closes it and does not come back.

    Args:
        client: The connection.
        file: Its credentials.
        known: What the file held before the connection was made.
    """
    while not client.is_closed:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            now = await asyncio.to_thread(file.read_bytes)
        except OSError as error:  # between one file and the next
            log.debug("reading %s: %r", file, error)
            continue
        if now != known:
            known = now
            log.info("new credentials: connecting anew")
            await client.force_reconnect()
