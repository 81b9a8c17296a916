"""Sends the requests that `rollfleet_api.streams` plans for a job's streams, in the account of the job."""

import json
from collections.abc import Mapping

from nats.errors import NoRespondersError

from rollfleet_api.jetstream import NO_CAPACITY, JetStreamCode
from rollfleet_api.job import CollectorJob
from rollfleet_api.streams import (
    API,
    Plan,
    Reply,
    Request,
    RequestRefused,
    deprovisioning,
    provisioning,
    subjects_of,
)
from rollfleet_api.subjects import Subjects
from rollfleet_operator.errors import NatsFull, NatsUnavailable
from rollfleet_operator.nats.connection import Connection
from rollfleet_operator.nats.space import StreamInfo, wanted_space


class JetStreamOff(NatsUnavailable):
    """JetStream is off in the account."""


async def provision(
    account: Connection, job: CollectorJob, kept: Mapping[str, bytes], *, state_bytes: int, if_lacking: bool = False
) -> bool:
    """Create the streams or update them, with the space that they need, and publish the job if it has changed.

    Args:
        account: The connection to the account of the job.
        job: The job.
        kept: Messages of its state by subject; they are stored again where NATS has lost them.
        state_bytes: The most bytes of its state.
        if_lacking: Whether to do it only if the streams need more space than they have.

    Returns:
        Whether they needed more space.

    Raises:
        NatsFull: NATS has too little space.
        NatsUnavailable: NATS refused; the text says why.
    """
    batches, state = await _infos(account, job)
    held = [stream["config"]["max_bytes"] for stream in (batches, state) if stream]
    space = wanted_space(job, batches, state, state_bytes=state_bytes)
    lacks = [space.batches, space.state] != held
    if lacks or not if_lacking:
        await _carry_out(account, provisioning(job, kept, space=space))
    return lacks


async def deprovision(account: Connection, subjects: Subjects) -> None:
    """Delete the streams and all their messages.

    Raises:
        NatsUnavailable: NATS refused; the text says why.
    """
    try:
        await _carry_out(account, deprovisioning(subjects))
    except JetStreamOff:
        return  # an account without JetStream has no streams


async def _carry_out(account: Connection, plan: Plan) -> None:
    try:
        request = next(plan)
        while True:
            request = plan.send(await _send(account, request))
    except StopIteration:
        return
    except RequestRefused as refused:
        kind = NatsFull if refused.error_code in NO_CAPACITY else NatsUnavailable
        raise kind(str(refused)) from refused


async def _infos(account: Connection, job: CollectorJob) -> list[StreamInfo | None]:
    """Return the streams of the job's batches and of its state; None: it does not exist."""
    return [await _info(account, name) for name in (subjects_of(job).batches_stream, subjects_of(job).state_stream)]


async def _info(account: Connection, stream: str) -> StreamInfo | None:
    request = Request(subject=f"{API}STREAM.INFO.{stream}")
    reply = await _send(account, request)
    if reply.error_code and reply.error_code != JetStreamCode.STREAM_NOT_FOUND:
        raise NatsUnavailable(str(RequestRefused(request, reply)))
    info: StreamInfo = json.loads(reply.data)
    return None if reply.error_code else info


async def _send(account: Connection, request: Request) -> Reply:
    try:
        message = await account.request(request.subject, request.data, headers=dict(request.headers) or None)
    except NoRespondersError as error:
        if request.subject.startswith(f"{API}STREAM."):
            raise JetStreamOff("JetStream is off in the job's account") from error
        raise
    return Reply.parse(request, message.data)
