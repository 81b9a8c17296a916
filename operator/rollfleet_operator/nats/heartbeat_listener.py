"""The last messages of a job: from subscriptions, and from NATS for those of before them."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import MAX_MESSAGE_BYTES, Control, LearnerStatus, MessageInvalid, WorkerStatus, unpack
from rollfleet_api.streams import subjects_of
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import REQUEST_TIMEOUT_S, Connection
from rollfleet_operator.nats_port import Heartbeats

log = logging.getLogger(__name__)

M = TypeVar("M")

NO_RESPONDERS = "503"  # the status if no service listens
ASKED_AT_ONCE = 1000  # NATS answers for at most 1,024 subjects at a time
MAX_OF_WORKER_BYTES = 1 << 16  # of a worker's heartbeat, with its last error


class HeartbeatListener:
    """The listener of one job.

    Args:
        account: A connection to the job's account.
    """

    def __init__(self, account: Connection) -> None:
        self._account = account
        self._listening: Client | None = None
        self._asked = 0  # number of requests for all subjects on this connection
        self._last: dict[str, bytes] = {}
        self._before: dict[str, bytes] = {}  # messages from earlier connections
        self._uid: str | None = None  # UID of the job
        self._pushed: set[str] = set()  # subjects with a message since the subscription: it is newer than any answer
        self._workers = 0  # the greatest number of workers so far
        self._limits: dict[str, int] = {}  # bytes by known subject: a client may invent others
        self._asking = asyncio.Lock()

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """Return the last messages.

        Raises:
            NatsUnavailable: NATS did not answer.
        """
        async with self._asking:
            if job.metadata.uid != self._uid:
                self._uid, self._listening, self._workers = job.metadata.uid, None, 0
                self._last.clear()
                self._before.clear()
            if job.spec.workers > self._workers:
                self._workers = job.spec.workers
                self._limits = _limits(job, self._workers)
            client = await self._account.client()
            if client is not self._listening:  # a new connection has missed messages
                await self._listen(client, job)
                self._listening = client
            elif self._asked == 1:
                # A message is stored a moment after it is published: one from just before the subscription may have
                # been stored just after the first request.
                await self._ask_for_all(client, job)
        return self._decoded(job)

    def kept(self, job: CollectorJob) -> dict[str, bytes]:
        """Return the messages to store again if NATS loses them, by subject: leases, control and the learner's status.

        A learner or a worker that restarts needs them. Weights are not among them: the learner sends them again.
        """
        beats = subjects_of(job).workers.removesuffix("*")
        known = self._before | self._last if job.metadata.uid == self._uid else {}
        return {subject: data for subject, data in known.items() if not subject.startswith(beats)}

    async def _listen(self, client: Client, job: CollectorJob) -> None:
        subjects = subjects_of(job)
        self._before |= self._last
        self._last.clear()
        self._pushed.clear()
        self._asked = 0
        wanted = (subjects.workers, subjects.learner, subjects.control, subjects.leases)
        listening = [await client.subscribe(subject, cb=self._on_message) for subject in wanted]
        try:
            await self._ask_for_all(client, job)
        except NatsUnavailable:
            for each in listening:  # the next attempt subscribes again, perhaps on the same connection
                with suppress(NatsError):
                    await each.unsubscribe()
            raise

    async def _ask_for_all(self, client: Client, job: CollectorJob) -> None:
        subjects, wanted = subjects_of(job), [*_limits(job, job.spec.workers)]
        try:
            for first in range(0, len(wanted), ASKED_AT_ONCE):
                await self._ask(client, subjects.state_stream, wanted[first : first + ASKED_AT_ONCE])
        except (NatsError, TimeoutError, OSError) as error:
            raise NatsUnavailable(f"NATS did not return the last heartbeats of {subjects.key}: {error!r}") from error
        self._asked += 1

    async def _ask(self, client: Client, stream: str, subjects: list[str]) -> None:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        try:
            request = json.dumps({"multi_last": subjects}).encode()
            await client.publish(f"$JS.API.DIRECT.GET.{stream}", request, reply=inbox)
            async for headers, data in _until_status(answers):
                if (subject := headers["Nats-Subject"]) not in self._pushed:
                    self._keep(subject, data)
        finally:
            await answers.unsubscribe()

    async def _on_message(self, message: Msg) -> None:
        if self._keep(message.subject, message.data):
            self._pushed.add(message.subject)

    def _keep(self, subject: str, data: bytes) -> bool:
        """Keep a message if it is read later: the operator's memory is shared by all jobs."""
        kept = len(data) <= self._limits.get(subject, -1)
        if kept:
            self._last[subject] = data
        return kept

    def _decoded(self, job: CollectorJob) -> Heartbeats:
        subjects = subjects_of(job)
        workers = {}
        for subject, data in self._last.items():
            if not subject.startswith(subjects.workers.removesuffix("*")):
                continue
            status = _read(WorkerStatus, data)
            if status and subject == subjects.worker(status.worker):
                workers[status.worker] = status
        return Heartbeats(
            workers=workers,
            learner=_read(LearnerStatus, self._last.get(subjects.learner)),
            control=_read(Control, self._last.get(subjects.control)),
        )


def _limits(job: CollectorJob, workers: int) -> dict[str, int]:
    """Return the subjects of a job's messages, and the most bytes of each."""
    subjects = subjects_of(job)
    own = (of_worker(index) for of_worker in (subjects.worker, subjects.lease) for index in range(workers))
    both = (subjects.learner, subjects.control)
    return dict.fromkeys(both, MAX_MESSAGE_BYTES) | dict.fromkeys(own, MAX_OF_WORKER_BYTES)


async def _until_status(answers: Subscription) -> AsyncIterator[tuple[dict[str, str], bytes]]:
    """Yield the headers and data of the messages of a direct get for several subjects; a status ends them.

    Raises:
        NoRespondersError: The stream does not exist.
    """
    while True:
        message = await answers.next_msg(REQUEST_TIMEOUT_S)
        headers = message.headers or {}
        if status := headers.get("Status"):
            break
        yield headers, message.data
    if status == NO_RESPONDERS:
        raise NoRespondersError


def _read(kind: type[M], data: bytes | None) -> M | None:
    if data is None:
        return None
    try:
        return unpack(kind, data)
    except MessageInvalid as error:
        log.debug("ignored a message: %s", error)
        return None
