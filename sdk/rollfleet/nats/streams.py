"""JetStream's API over a link: create and delete a job's stream, as an operator does, for a job on this machine.

`rollfleet_api.streams` plans the requests; this module sends them.
"""

from collections.abc import Mapping

from nats.aio.msg import Msg
from nats.js.errors import APIError, ServiceUnavailableError

from rollfleet.errors import JetStreamRefused
from rollfleet.nats.link import REQUEST_TIMEOUT_S, Link
from rollfleet_api.job import CollectorJob
from rollfleet_api.streams import Plan, Reply, Request, RequestRefused, deprovisioning, provisioning

_UNAVAILABLE = 503  # JetStream is starting up: the one refusal that a retry can mend


async def own(link: Link, job: CollectorJob) -> dict[str, bytes]:
    """Create a job's stream, and again whenever NATS has lost them, with the messages that its processes restart from.

    These are the newest leases, control message and learner's status. Weights are not among them: the learner sends
    them again.

    Returns:
        These messages, by subject. They change with each newer one.

    Raises:
        JetStreamRefused: JetStream refused it, for want of memory say.
    """
    kept: dict[str, bytes] = {}
    leases = {link.subjects.lease(index) for index in range(job.spec.workers)}  # workers may send any others

    async def keep(message: Msg) -> None:
        if message.subject in (link.subjects.control, link.subjects.learner, *leases):
            kept[message.subject] = message.data

    await provision(link, job)
    for subject in (link.subjects.control, link.subjects.learner, link.subjects.leases):
        await link.client.subscribe(subject, cb=keep)
    await link.flush()  # from now on, no message is missed
    link.on_reconnect(lambda: provision(link, job, kept=kept))
    return kept


async def provision(link: Link, job: CollectorJob, *, kept: Mapping[str, bytes] | None = None) -> None:
    """Create a job's stream or update it, and publish the job.

    Messages in `kept` (see `own`) are stored again where NATS has lost them.

    Raises:
        JetStreamRefused: JetStream refused it, for want of memory say.
    """
    await _carry_out(link, provisioning(job, kept or {}))


async def deprovision(link: Link) -> None:
    """Delete the job's stream and all its messages.

    Raises:
        JetStreamRefused: The server refused it.
    """
    await _carry_out(link, deprovisioning(link.subjects))


async def _carry_out(link: Link, plan: Plan) -> None:
    try:
        request = next(plan)
        while True:
            request = plan.send(await send(link, request))
    except StopIteration:
        return
    except RequestRefused as refused:
        if refused.subject.startswith("STREAM."):
            raise JetStreamRefused(refused.subject, refused.error_code, refused.description) from refused
        raise APIError(err_code=refused.error_code, description=refused.description) from refused  # it is tried again


async def send(link: Link, request: Request) -> Reply:
    """Send a request to JetStream.

    Raises:
        ServiceUnavailableError: JetStream is starting up, or has no leader: ask again.
    """
    headers = dict(request.headers) or None
    message = await link.client.request(request.subject, request.data, timeout=REQUEST_TIMEOUT_S, headers=headers)
    reply = Reply.parse(request, message.data)
    if reply.status == _UNAVAILABLE:
        raise ServiceUnavailableError(description=reply.description)
    return reply
