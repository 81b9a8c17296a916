"""Asks JetStream's API."""

import json
from collections.abc import Mapping
from typing import Any

from nats.js.errors import ServiceUnavailableError

from rollfleet.errors import JetStreamRefused
from rollfleet.nats.link import REQUEST_TIMEOUT_S, Link

NO_STREAM, NO_CONSUMER = 10059, 10014  # JetStream's error codes
NOT_FOUND = (NO_STREAM, NO_CONSUMER)
_UNAVAILABLE = 503  # JetStream is starting up: the one refusal that time mends


async def ask(link: Link, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """JetStream's answer.

    Raises:
        JetStreamRefused: It is a refusal.
    """
    data = json.dumps(body).encode() if body else b""
    message = await link.client.request(f"$JS.API.{subject}", data, timeout=REQUEST_TIMEOUT_S)
    answer: dict[str, Any] = json.loads(message.data)
    if error := answer.get("error"):
        if error.get("code") == _UNAVAILABLE:
            raise ServiceUnavailableError(description=error.get("description"))
        raise JetStreamRefused(subject, error.get("err_code", 0), error.get("description", "no reason given"))
    return answer


async def remove(link: Link, subject: str) -> None:
    """Ask for something to be deleted, which may not be there."""
    try:
        await ask(link, subject, {})
    except JetStreamRefused as error:
        if error.error_code not in NOT_FOUND:
            raise
