"""What was last heard of a job: listened for, and asked for where it was said before anybody listened."""

import asyncio
import json
import logging
from typing import TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerStatus, MessageInvalid, WorkerStatus, unpack
from rollfleet_api.streams import subjects_of
from rollfleet_operator.errors import WireUnavailable
from rollfleet_operator.nats.connection import REQUEST_TIMEOUT_S, Connection
from rollfleet_operator.wire import Heartbeats

log = logging.getLogger(__name__)

M = TypeVar("M")

ASKED_AT_ONCE = 1000  # NATS answers for at most 1,024 subjects at a time


class Ear:
    """Listens to one job.

    Args:
        account: A connection in the job's account.
    """

    def __init__(self, account: Connection) -> None:
        self._account = account
        self._listening: Client | None = None
        self._asked = 0  # how often, since we listen
        self._last: dict[str, bytes] = {}
        self._told: set[str] = set()  # subjects of which something came since we listen: it is newer than any answer
        self._asking = asyncio.Lock()

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """The last that was heard.

        Raises:
            WireUnavailable: NATS did not answer, and nothing was heard before.
        """
        async with self._asking:
            client = await self._account.client()
            if client is not self._listening:  # a new connection: what was said in between was missed
                await self._listen(client, job)
                self._listening = client
            elif self._asked == 1:
                # What is published is not stored in the same moment: what came just before we listened may have been
                # stored just after we asked.
                await self._ask_for_all(client, job)
        return self._decoded(job)

    async def _listen(self, client: Client, job: CollectorJob) -> None:
        subjects = subjects_of(job)
        self._last.clear()
        self._told.clear()
        self._asked = 0
        for subject in (subjects.workers, subjects.learner, subjects.control):
            await client.subscribe(subject, cb=self._on_message)
        await self._ask_for_all(client, job)

    async def _ask_for_all(self, client: Client, job: CollectorJob) -> None:
        subjects = subjects_of(job)
        wanted = [subjects.learner, subjects.control, *(subjects.worker(i) for i in range(job.spec.workers))]
        try:
            for first in range(0, len(wanted), ASKED_AT_ONCE):
                await self._ask(client, subjects.state_stream, wanted[first : first + ASKED_AT_ONCE])
        except (NatsError, TimeoutError, OSError) as error:
            raise WireUnavailable(f"NATS did not tell the last heartbeats of {subjects.key}: {error!r}") from error
        self._asked += 1

    async def _ask(self, client: Client, stream: str, subjects: list[str]) -> None:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        try:
            request = json.dumps({"multi_last": subjects}).encode()
            await client.publish(f"$JS.API.DIRECT.GET.{stream}", request, reply=inbox)
            while (headers := (message := await answers.next_msg(REQUEST_TIMEOUT_S)).headers) and (
                subject := headers.get("Nats-Subject")
            ):
                if subject not in self._told:
                    self._last[subject] = message.data
        finally:
            await answers.unsubscribe()

    async def _on_message(self, message: Msg) -> None:
        self._last[message.subject] = message.data
        self._told.add(message.subject)

    def _decoded(self, job: CollectorJob) -> Heartbeats:
        subjects = subjects_of(job)
        workers = {}
        for subject, data in self._last.items():
            if subject in (subjects.learner, subjects.control):
                continue
            status = _read(WorkerStatus, data)
            if status and subject == subjects.worker(status.worker):
                workers[status.worker] = status
        return Heartbeats(
            workers=workers,
            learner=_read(LearnerStatus, self._last.get(subjects.learner)),
            control=_read(Control, self._last.get(subjects.control)),
        )


def _read(kind: type[M], data: bytes | None) -> M | None:
    if data is None:
        return None
    try:
        return unpack(kind, data)
    except MessageInvalid as error:
        log.debug("passed over: %s", error)
        return None
