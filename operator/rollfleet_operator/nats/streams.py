"""Sends the requests that `rollfleet_api.streams` plans for a job's stream."""

from collections.abc import Mapping

from nats.errors import NoRespondersError

from rollfleet_api.job import CollectorJob
from rollfleet_api.streams import Plan, Reply, Request, RequestRefused, deprovisioning, provisioning
from rollfleet_api.subjects import Subjects
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import Connection


async def provision(nats: Connection, job: CollectorJob, kept: Mapping[str, bytes]) -> None:
    """Create the stream or update it, and publish the job if it has changed.

    Args:
        nats: The connection to the job's NATS.
        job: The job.
        kept: Messages of its state by subject; they are stored again where NATS has lost them.

    Raises:
        NatsUnavailable: NATS refused; the text says why.
    """
    await _carry_out(nats, provisioning(job, kept))


async def deprovision(nats: Connection, subjects: Subjects) -> None:
    """Delete the stream and all its messages.

    Raises:
        NatsUnavailable: NATS refused; the text says why.
    """
    await _carry_out(nats, deprovisioning(subjects))


async def _carry_out(nats: Connection, plan: Plan) -> None:
    try:
        request = next(plan)
        while True:
            request = plan.send(await _send(nats, request))
    except StopIteration:
        return
    except RequestRefused as refused:
        raise NatsUnavailable(str(refused)) from refused


async def _send(nats: Connection, request: Request) -> Reply:
    try:
        message = await nats.request(request.subject, request.data, headers=dict(request.headers) or None)
    except NoRespondersError as error:
        raise NatsUnavailable("JetStream does not answer: it starts, or it is off for this user") from error
    return Reply.parse(request, message.data)
