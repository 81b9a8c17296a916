"""Reads a job's state stream, which keeps the last message of each subject."""

import asyncio
import logging
import time
from typing import TypeVar

from nats.errors import Error as NatsError

from rollfleet.errors import JobNotFound
from rollfleet.nats.link import REQUEST_TIMEOUT_S, Link, unpack_or_skip
from rollfleet.nats.polling import RETRY_WAIT_S
from rollfleet_api.job import CollectorJob

log = logging.getLogger(__name__)

M = TypeVar("M")


async def read_bytes(link: Link, subject: str) -> bytes | None:
    """Return the payload of the last message on a state subject; None: no message."""
    request = f"$JS.API.DIRECT.GET.{link.subjects.state_stream}.{subject}"
    message = await link.client.request(request, timeout=REQUEST_TIMEOUT_S)
    return None if message.headers and message.headers.get("Status") else message.data


async def read_state(link: Link, subject: str, kind: type[M]) -> M | None:
    """Return the last message on a state subject; None: no message, or an invalid one, which is logged."""
    data = await read_bytes(link, subject)
    return None if data is None else unpack_or_skip(kind, data, subject)


async def read_job(link: Link, *, timeout_s: float) -> CollectorJob:
    """Return the job as it was published.

    Raises:
        JobNotFound: No job was published within `timeout_s`.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            data = await read_bytes(link, link.subjects.spec)
        except NatsError as error:  # no such stream, or NATS is busy or away
            log.debug("reading the job: %r", error)
            data = None
        if data is not None:
            return CollectorJob.model_validate_json(data)
        if time.monotonic() >= until:
            raise JobNotFound(
                f"no job {link.subjects.key} on this NATS server after {timeout_s:g} s; apply it, or start it with "
                f"`rollfleet run`"
            )
        await asyncio.sleep(RETRY_WAIT_S)
