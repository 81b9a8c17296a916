"""Sends the requests that `rollfleet_api.streams` plans for a job's stream, in the account of the job."""

from collections.abc import Mapping

from nats.errors import NoRespondersError

from rollfleet_api.job import CollectorJob
from rollfleet_api.streams import API, Plan, Reply, Request, RequestRefused, deprovisioning, provisioning
from rollfleet_api.subjects import Subjects
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import Connection


class JetStreamOff(NatsUnavailable):
    """JetStream is off in the account."""


async def provision(account: Connection, job: CollectorJob, kept: Mapping[str, bytes], *, state_bytes: int) -> None:
    """Create the stream or update it, and publish the job if it has changed.

    Args:
        account: The connection to the account of the job.
        job: The job.
        kept: Messages of its state by subject; they are stored again where NATS has lost them.
        state_bytes: The most bytes of its state.

    Raises:
        NatsUnavailable: NATS refused; the text says why.
    """
    await _carry_out(account, provisioning(job, kept, state_bytes=state_bytes))


async def deprovision(account: Connection, subjects: Subjects) -> None:
    """Delete the stream and all its messages.

    Raises:
        NatsUnavailable: NATS refused; the text says why.
    """
    try:
        await _carry_out(account, deprovisioning(subjects))
    except JetStreamOff:
        return  # an account without JetStream has no stream


async def _carry_out(account: Connection, plan: Plan) -> None:
    try:
        request = next(plan)
        while True:
            request = plan.send(await _send(account, request))
    except StopIteration:
        return
    except RequestRefused as refused:
        raise NatsUnavailable(str(refused)) from refused


async def _send(account: Connection, request: Request) -> Reply:
    try:
        message = await account.request(request.subject, request.data, headers=dict(request.headers) or None)
    except NoRespondersError as error:
        if request.subject.startswith(f"{API}STREAM."):
            raise JetStreamOff("JetStream is off in the job's account") from error
        raise
    return Reply.parse(request, message.data)
