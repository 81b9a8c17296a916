"""Follows a credentials file: a connection must use new credentials before the old ones expire."""

import asyncio
import logging
from pathlib import Path

from nats.aio.client import Client

log = logging.getLogger(__name__)

CHECK_EVERY_S = 10.0  # an operator renews at half of their validity: hours before they expire


async def follow_credentials(client: Client, file: Path, known: bytes) -> None:
    """Reconnect whenever the file changes: the client reads it at each connection.

    NATS ends a connection whose credentials expire; nats-py then closes it for good.

    Args:
        client: The connection.
        file: Its credentials.
        known: The file's content before the connection was made.
    """
    while not client.is_closed:
        await asyncio.sleep(CHECK_EVERY_S)
        try:
            now = await asyncio.to_thread(file.read_bytes)
        except OSError as error:  # between one file and the next
            log.debug("reading %s: %r", file, error)
            continue
        if now != known:
            known = now
            log.info("new credentials: reconnecting")
            await client.force_reconnect()
