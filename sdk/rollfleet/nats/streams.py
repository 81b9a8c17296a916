"""Makes a job's streams on a NATS server, and takes them away: what an operator does, for a job that runs here."""

import json
from collections.abc import Mapping

from nats.js.errors import APIError

from rollfleet.errors import JetStreamRefused
from rollfleet.nats.jetstream import NO_STREAM, ask, remove
from rollfleet.nats.link import Link
from rollfleet_api.job import CollectorJob
from rollfleet_api.streams import StreamConfiguration, batches_stream, state_stream, what_to_write

_WRONG_LAST_SEQUENCE = 10071  # JetStream's error code


async def provision(link: Link, job: CollectorJob, *, kept: Mapping[str, bytes] | None = None) -> None:
    """Make the job's streams, or bring those that are there up to date, and publish the job itself.

    Args:
        link: A connection that may.
        job: The job.
        kept: Messages of its state by subject (see `StateBackup`), put back where NATS had lost them. The job itself
            goes last: whoever joins waits for it, and finds all the rest.

    Raises:
        JetStreamRefused: There is not enough room for `delivery.maxBytes`, or too few servers for `delivery.replicas`.
    """
    for stream in (state_stream(job), batches_stream(job)):
        try:
            await _update_or_create(link, stream)
        except JetStreamRefused as error:
            advice = what_to_write(job, error.error_code)
            raise JetStreamRefused(error.subject, error.error_code, f"{error.description}{advice}") from error
    for subject, data in (kept or {}).items():
        await _put_back(link, subject, data)
    await link.js.publish(link.subjects.spec, json.dumps(job.dump()).encode())


async def _update_or_create(link: Link, stream: StreamConfiguration) -> None:
    """In this order: to create a stream that is there takes room for it a second time, and is refused without."""
    try:
        await ask(link, f"STREAM.UPDATE.{stream['name']}", stream)
    except JetStreamRefused as error:
        if error.error_code != NO_STREAM:
            raise
        await ask(link, f"STREAM.CREATE.{stream['name']}", stream)


async def _put_back(link: Link, subject: str, data: bytes) -> None:
    """Where there is nothing: what is there already is newer."""
    try:
        await link.js.publish(subject, data, headers={"Nats-Expected-Last-Subject-Sequence": "0"})
    except APIError as error:
        if error.err_code != _WRONG_LAST_SEQUENCE:
            raise


async def deprovision(link: Link) -> None:
    """Take the job's streams away, with all that is in them.

    The state goes first: a learner whose consumer vanishes looks for it, to tell an end from a successor.
    """
    for stream in (link.subjects.state_stream, link.subjects.batches_stream):
        await remove(link, f"STREAM.DELETE.{stream}")
