"""Makes a job's streams on a NATS server, and takes them away: what an operator does, for a job that runs here."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from nats.js.errors import APIError, ServiceUnavailableError

from rollfleet.errors import JetStreamRefused
from rollfleet.link import REQUEST_TIMEOUT_S, Link
from rollfleet_api.job import CollectorJob
from rollfleet_api.streams import OWNER, StreamConfiguration, batches_stream, learner_consumer, state_stream

_NO_STREAM, _NO_CONSUMER = 10059, 10014  # JetStream's error codes
_NOT_FOUND = (_NO_STREAM, _NO_CONSUMER)
_WRONG_LAST_SEQUENCE = 10071
_NO_ROOM = (10002, 10023, 10028, 10047)  # of the account or the server, in memory or on disk
_UNAVAILABLE = 503  # JetStream is starting up: the one refusal that time mends


async def provision(link: Link, job: CollectorJob, *, kept: Mapping[str, bytes] | None = None) -> None:
    """Make the job's streams, or bring those that are there up to date, and publish the job itself.

    Args:
        link: A connection that may.
        job: The job.
        kept: Messages of its state by subject (see `Keepsake`), put back where NATS had lost them. The job itself goes
            last: whoever joins waits for it, and finds all the rest.

    Raises:
        JetStreamRefused: For example, there is not enough room for `delivery.maxBytes`.
    """
    for stream in (state_stream(job), batches_stream(job)):
        try:
            await _update_or_create(link, stream)
        except JetStreamRefused as error:
            if error.error_code in _NO_ROOM:
                raise JetStreamRefused(error.subject, error.error_code, f"{error.description}; {_room(job)}") from error
            raise
    for subject, data in (kept or {}).items():
        await _put_back(link, subject, data)
    await link.js.publish(link.subjects.spec, json.dumps(job.dump()).encode())


async def _update_or_create(link: Link, stream: StreamConfiguration) -> None:
    """In this order: to create a stream that is there takes room for it a second time, and is refused without."""
    try:
        await _request(link, f"STREAM.UPDATE.{stream['name']}", stream)
    except JetStreamRefused as error:
        if error.error_code != _NO_STREAM:
            raise
        await _request(link, f"STREAM.CREATE.{stream['name']}", stream)


def _room(job: CollectorJob) -> str:
    delivery = job.spec.delivery
    return (
        f"the job keeps up to `delivery.maxBytes: {delivery.max_bytes}` in `delivery.storage: {delivery.storage}`: "
        f"write less there, or give NATS more (`max_file_store`, `max_memory_store`, or the account's limits)"
    )


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
        await _ignoring_absence(link, f"STREAM.DELETE.{stream}")


async def remake_learner_consumer(link: Link, owner: str) -> None:
    """Make the learner's consumer anew: whoever held it is told so, and what was not acknowledged comes again."""
    stream, name = link.subjects.batches_stream, link.subjects.learner_consumer
    await _ignoring_absence(link, f"CONSUMER.DELETE.{stream}.{name}")
    await make_learner_consumer(link, owner)


async def make_learner_consumer(link: Link, owner: str) -> None:
    """Make the learner's consumer.

    Raises:
        JetStreamRefused: There is one, of somebody else.
    """
    consumer = learner_consumer(link.subjects, owner)
    stream, name = link.subjects.batches_stream, consumer["durable_name"]
    body = {"stream_name": stream, "config": consumer, "action": "create"}
    await _request(link, f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body)


class Gone(StrEnum):
    """Why there is no consumer."""

    CONSUMER = "consumer"
    STREAM = "stream"


async def owner_of_learner_consumer(link: Link) -> str | Gone:
    """Who made the learner's consumer; or that it, or its whole stream, is not there."""
    try:
        info = await _request(
            link, f"CONSUMER.INFO.{link.subjects.batches_stream}.{link.subjects.learner_consumer}", {}
        )
    except JetStreamRefused as error:
        if error.error_code not in _NOT_FOUND:
            raise
        return Gone.CONSUMER if error.error_code == _NO_CONSUMER else Gone.STREAM
    return str(info["config"].get("metadata", {}).get(OWNER, ""))


async def _ignoring_absence(link: Link, subject: str) -> None:
    try:
        await _request(link, subject, {})
    except JetStreamRefused as error:
        if error.error_code not in _NOT_FOUND:
            raise


async def _request(link: Link, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
    data = json.dumps(body).encode() if body else b""
    message = await link.client.request(f"$JS.API.{subject}", data, timeout=REQUEST_TIMEOUT_S)
    answer: dict[str, Any] = json.loads(message.data)
    if error := answer.get("error"):
        if error.get("code") == _UNAVAILABLE:
            raise ServiceUnavailableError(description=error.get("description"))
        raise JetStreamRefused(subject, error.get("err_code", 0), error.get("description", "no reason given"))
    return answer
