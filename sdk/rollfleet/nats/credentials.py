"""Reads a credentials file, and follows it: a connection must use new credentials before the old ones expire."""

import asyncio
import base64
import json
import logging
import re
from pathlib import Path

from nats.aio.client import Client

from rollfleet.errors import ConnectionFailed

log = logging.getLogger(__name__)

CHECK_EVERY_S = 10.0  # an operator renews at half of their validity: hours before they expire


def of_another_job(credentials: bytes, job: str) -> ConnectionFailed:
    """Return the error of credentials, the content of their file, that are not for `job`. It names both jobs."""
    try:
        payload = credentials.partition(b"USER JWT")[2].split(b".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        found = re.search(r"(?:^| )rollfleet\.([a-z0-9-]+)\.([a-z0-9-]+)\.", " ".join(claims["nats"]["sub"]["allow"]))
    except (IndexError, KeyError, TypeError, ValueError):  # written by another program than the operator
        found = None
    own = found and f"{found[1]}/{found[2]}"
    return ConnectionFailed(
        f"these credentials are for {own or 'another job'}, you asked for {job}: "
        f"{f'connect to {own!r}, or ' if own else ''}use the credentials of {job}"
    )


async def follow_credentials(client: Client, file: Path, known: bytes) -> None:
    """Reconnect whenever the file changes: the client reads it at each connection.

    NATS ends a connection whose credentials expire; the client then tries to reconnect until they are renewed. `known`
    is the file's content before the connection was made.
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
