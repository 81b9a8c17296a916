"""Makes a job's streams, in the job's own account."""

import json
import logging
from collections.abc import Mapping

from nats.errors import NoRespondersError
from pydantic import JsonValue

from rollfleet_api.job import CollectorJob
from rollfleet_api.streams import batches_stream, state_stream, subjects_of, what_to_write
from rollfleet_api.subjects import Subjects
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import Connection, parsed

log = logging.getLogger(__name__)

_NOT_FOUND = 10059
_WRONG_LAST_SEQUENCE = 10071


class JetStreamOff(NatsUnavailable):
    """The account has no JetStream."""


async def provision(account: Connection, job: CollectorJob, kept: Mapping[str, bytes]) -> None:
    """Make the streams, or bring those that are there up to date; publish the job, where it differs from what is there.

    Args:
        account: Of the job's streams.
        job: The job.
        kept: Messages of its state by subject, put back where NATS had lost them. The job itself goes last: whoever
            joins waits for it, and finds all the rest.

    Raises:
        JetStreamOff: There was no room for the account when NATS was told of it.
        NatsUnavailable: NATS refused; the text tells why.
    """
    for stream in (state_stream(job), batches_stream(job)):
        # In this order: to create a stream that is there takes room for it a second time, and is refused without.
        code, reason = await _request(account, f"STREAM.UPDATE.{stream['name']}", stream)
        made = code == _NOT_FOUND
        if made:
            code, reason = await _request(account, f"STREAM.CREATE.{stream['name']}", stream)
        if code:
            advice = what_to_write(job, code)
            raise NatsUnavailable(f"NATS refused stream {stream['name']}: {reason} (error {code}){advice}")
        if made and stream == state_stream(job):
            for subject, data in kept.items():
                await _put_back(account, subject, data)
    await _publish_spec(account, job)


async def _put_back(account: Connection, subject: str, data: bytes) -> None:
    """Where there is nothing: what is there already is newer."""
    answer = parsed(await account.request(subject, data, headers={"Nats-Expected-Last-Subject-Sequence": "0"}))
    error = answer.get("error")
    if isinstance(error, dict) and error.get("err_code") != _WRONG_LAST_SEQUENCE:
        raise NatsUnavailable(f"NATS did not store {subject} again: {error}")


async def take_away(account: Connection, subjects: Subjects) -> None:
    """Delete the streams, with all that is in them.

    The state goes first: a learner whose consumer vanishes looks for it, to tell an end from a successor.
    """
    for stream in (subjects.state_stream, subjects.batches_stream):
        try:
            code, reason = await _request(account, f"STREAM.DELETE.{stream}", {})
        except JetStreamOff:
            return
        if code not in (0, _NOT_FOUND):
            raise NatsUnavailable(f"NATS did not delete stream {stream}: {reason} (error {code})")


async def _publish_spec(account: Connection, job: CollectorJob) -> None:
    subjects = subjects_of(job)
    said = json.dumps(job.dump()).encode()
    stored = await account.request(f"$JS.API.DIRECT.GET.{subjects.state_stream}.{subjects.spec}")
    if stored.data == said:
        return  # whoever listens would think that something changed
    answer = parsed(await account.request(subjects.spec, said.decode()))
    if error := answer.get("error"):
        raise NatsUnavailable(f"NATS did not store the job: {error}")


async def _request(account: Connection, subject: str, body: Mapping[str, object]) -> tuple[int, str]:
    """The error code and description; 0: it went well."""
    try:
        answer = parsed(await account.request(f"$JS.API.{subject}", body or ""))
    except NoRespondersError as error:
        raise JetStreamOff("JetStream is off in the job's account") from error
    refusal: JsonValue = answer.get("error")
    if not isinstance(refusal, dict):
        return 0, ""
    return int(str(refusal.get("err_code", -1))), str(refusal.get("description", "no reason given"))
