"""Reads the last word on something from a job's state stream."""

import asyncio
import logging
import time
from typing import TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from rollfleet.errors import JobNotFound
from rollfleet.nats.link import REQUEST_TIMEOUT_S, RETRY_WAIT_S, Link
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import unpack

log = logging.getLogger(__name__)

M = TypeVar("M")


async def read_message(link: Link, subject: str) -> Msg | None:
    """The last message on a state subject, with the headers that tell where it is stored; None: there is none."""
    request = f"$JS.API.DIRECT.GET.{link.subjects.state_stream}.{subject}"
    message = await link.client.request(request, timeout=REQUEST_TIMEOUT_S)
    return None if message.headers and message.headers.get("Status") else message


async def read_bytes(link: Link, subject: str) -> bytes | None:
    """What the last message on a state subject holds; None: there is none."""
    message = await read_message(link, subject)
    return message.data if message else None


async def read_state(link: Link, subject: str, kind: type[M]) -> M | None:
    """The last message on a state subject, as the type that it has; None: there is none."""
    data = await read_bytes(link, subject)
    return None if data is None else unpack(kind, data)


async def read_job(link: Link, *, timeout_s: float) -> CollectorJob:
    """The job itself, as whoever runs it has published it.

    Raises:
        JobNotFound: It was not there within `timeout_s`.
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
