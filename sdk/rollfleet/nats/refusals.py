"""What a server does not permit: credentials of another job end a connection, the rest is counted and reported once."""

import logging
from collections.abc import Awaitable, Callable

import nats

from rollfleet.errors import ConnectionFailed
from rollfleet.nats.client import Client
from rollfleet.nats.credentials import job_of_credentials
from rollfleet_api.subjects import Subjects

log = logging.getLogger(__name__)

_VIOLATION = "permissions violation"


class Refusals:
    """The publications and subscriptions of one connection that its server has not permitted.

    Args:
        job: The job, for messages.

    Attributes:
        count: How many there were.
    """

    def __init__(self, job: str) -> None:
        self.count = 0
        self._job = job
        self._reported = False

    def hear(self, error: Exception) -> bool:
        """Count an error of the connection if it is a refusal. Return whether it is."""
        _, refusal, subject = str(error).lower().partition(_VIOLATION)
        if refusal:
            self.count += 1
            log.log(
                logging.DEBUG if self._reported else logging.WARNING,
                "NATS does not permit these credentials of %s the%s; further refusals are only counted",
                self._job,
                subject.removeprefix(" for"),
            )
            self._reported = True
        return bool(refusal)

    async def check_job(
        self, client: Client, flush: Callable[[], Awaitable[None]], subjects: Subjects, credentials: bytes
    ) -> None:
        """Check that a connection's credentials are for this job.

        Args:
            client: The connection's client.
            flush: `Link.flush` of the connection.
            subjects: The job's subjects.
            credentials: The content of the credentials file; empty if there is no file.

        Raises:
            ConnectionFailed: They are for another job. The message names both.
        """
        reported, self._reported = self._reported, True  # what is raised is not logged
        before = self.count
        try:
            subscription = await client.subscribe(subjects.spec)  # which workers and learners may read
            await flush()  # a refusal comes before the answer
            await subscription.unsubscribe()
        except (nats.errors.Error, OSError, TimeoutError) as error:  # the connection is lost, and comes back
            log.debug("checking the credentials of %s: %r", self._job, error)
        self._reported = reported
        if self.count > before:
            own, job = job_of_credentials(credentials), subjects.key
            named = f"connect to {own!r}, or " if own else ""
            raise ConnectionFailed(
                f"these credentials are for {own or 'another job'}, you asked for {job}: "
                f"{named}use the credentials of {job}"
            )
