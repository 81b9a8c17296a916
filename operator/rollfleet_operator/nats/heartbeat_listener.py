"""The last messages of a job: from subscriptions, and from NATS for those of before them.

All jobs share the operator's memory. Therefore it keeps only messages that it reads later, of a limited size, and a
limited number for all jobs together.
"""

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerStatus, MessageInvalid, WorkerStatus, unpack
from rollfleet_api.streams import subjects_of
from rollfleet_api.subjects import Subjects
from rollfleet_api.text import last_line
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import REQUEST_TIMEOUT_S, Connection
from rollfleet_operator.nats_port import Heartbeats

log = logging.getLogger(__name__)

M = TypeVar("M")

NO_RESPONDERS: Final = "503"  # the status if no service listens
ASKED_AT_ONCE: Final = 1000  # NATS answers for at most 1,024 subjects at a time
ASKED_BYTES: Final = 4 << 20  # of one answer: NATS cuts off a connection that has too much to read

MOST_MESSAGES: Final = 100_000
"""The most kept messages of all jobs. A job may keep as many as all jobs leave free: half of them, if it is alone."""

MESSAGES_OF_JOB: Final = 512
"""The messages of a job that are kept in any case, so that large jobs take nothing from small ones."""

BEAT_BYTES: Final = 1 << 16  # of a worker's heartbeat, with its last error
ERROR_CHARS: Final = 500  # of the line of the error that is kept
LEASE_BYTES: Final = 1 << 10
LEARNER_BYTES: Final = 1 << 12  # of the learner's heartbeat, or of its orders besides those for single workers
ORDER_BYTES: Final = 32  # of an order for a single worker


@dataclass(slots=True)
class MessageCount:
    """Number of messages of all jobs: kept, and dropped as too large, too many, or of no worker of their job."""

    kept: int = 0
    dropped: int = 0


class HeartbeatListener:
    """The listener of one job. `nats` is the connection to the job's NATS."""

    def __init__(self, nats: Connection, count: MessageCount) -> None:
        self.nats, self._count = nats, count
        self._listening: Client | None = None
        self._asked = 0  # number of requests for all subjects on this connection
        self._beats: dict[int, WorkerStatus] = {}
        self._last: dict[str, bytes] = {}  # the other messages
        self._uid: str | None = None  # UID of the job
        self._pushed: set[str] = set()  # subjects with a message since the subscription: it is newer than any answer
        self._workers = 0  # the greatest number of workers so far
        self._subjects = Subjects(namespace="none", job="none")
        self._asking = asyncio.Lock()

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """Return the last messages.

        Raises:
            NatsUnavailable: NATS did not answer.
        """
        async with self._asking:
            if job.metadata.uid != self._uid:
                self.forget()
                self._uid, self._subjects = job.metadata.uid, subjects_of(job)
            self._workers = max(self._workers, job.spec.workers)
            client = await self.nats.client()
            if client is not self._listening:  # a new connection has missed messages
                await self._listen(client)
                self._listening = client
            elif self._asked == 1:
                # A message is stored a moment after it is published: one from just before the subscription may have
                # been stored just after the first request.
                await self._ask_for_all(client)
        return Heartbeats(
            workers=dict(self._beats),
            learner=_read(LearnerStatus, self._last.get(self._subjects.learner)),
            control=_read(Control, self._last.get(self._subjects.control)),
        )

    def kept(self, job: CollectorJob) -> dict[str, bytes]:
        """Return the messages to store again if NATS loses them, by subject: leases, control and the learner's status.

        A learner or a worker that restarts needs them. Weights are not among them: the learner sends them again.
        """
        return dict(self._last) if job.metadata.uid == self._uid else {}

    def forget(self) -> None:
        """Drop all messages."""
        self._uid, self._listening, self._workers = None, None, 0
        self._count.kept -= len(self._beats) + len(self._last)
        self._beats.clear()
        self._last.clear()

    async def _listen(self, client: Client) -> None:
        subjects = self._subjects
        self._asked = 0
        self._pushed.clear()
        wanted = (subjects.workers, subjects.learner, subjects.control, subjects.leases)
        listening = [await client.subscribe(subject, cb=self._on_message) for subject in wanted]
        try:
            await self._ask_for_all(client)
        except NatsUnavailable:
            for each in listening:  # the next attempt subscribes again, perhaps on the same connection
                with suppress(NatsError):
                    await each.unsubscribe()
            raise

    async def _ask_for_all(self, client: Client) -> None:
        subjects = self._subjects
        each = [of(index) for index in range(self._workers) for of in (subjects.worker, subjects.lease)]
        wanted = [subjects.learner, subjects.control, *each]
        try:
            for first in range(0, len(wanted), ASKED_AT_ONCE):
                await self._ask(client, wanted[first : first + ASKED_AT_ONCE])
        except (NatsError, TimeoutError, OSError) as error:
            raise NatsUnavailable(f"NATS did not return the last heartbeats of {subjects.key}: {error!r}") from error
        self._asked += 1

    async def _ask(self, client: Client, wanted: list[str]) -> None:
        """Keep the last messages of subjects.

        Raises:
            NoRespondersError: The stream does not exist.
            TimeoutError: NATS did not answer in time.
        """
        subject = f"$JS.API.DIRECT.GET.{self._subjects.state_stream}"
        request: dict[str, object] = {"multi_last": wanted, "max_bytes": ASKED_BYTES}
        while True:
            end = await self._answered(client, subject, request)
            if end.get("Status") == NO_RESPONDERS:
                raise NoRespondersError
            if not int(end.get("Nats-Num-Pending", "0")):
                return
            request |= {"seq": int(end["Nats-Last-Sequence"]) + 1, "up_to_seq": int(end["Nats-UpTo-Sequence"])}

    async def _answered(self, client: Client, subject: str, request: dict[str, object]) -> dict[str, str]:
        """Keep the messages that answer a request; return the headers of its end."""
        inbox, ended = client.new_inbox(), asyncio.get_running_loop().create_future()

        async def on_answer(message: Msg) -> None:
            headers = message.headers or {}
            if "Status" in headers:
                if not ended.done():
                    ended.set_result(headers)
            elif headers["Nats-Subject"] not in self._pushed:
                self._keep(headers["Nats-Subject"], message.data)

        answers = await client.subscribe(inbox, cb=on_answer)
        try:
            await client.publish(subject, json.dumps(request).encode(), reply=inbox)
            end: dict[str, str] = await asyncio.wait_for(ended, REQUEST_TIMEOUT_S)
        finally:
            await answers.unsubscribe()
        return end

    async def _on_message(self, message: Msg) -> None:
        if self._keep(message.subject, message.data) and self._asked < 2:
            self._pushed.add(message.subject)

    def _keep(self, subject: str, data: bytes) -> bool:
        """Keep a message if it is read later; return whether it was kept."""
        parent, _, last = subject.rpartition(".")
        subjects, worker = self._subjects, _index(last)
        known = worker is not None and worker < self._workers
        if worker is not None and known and parent == subjects.workers[:-2]:
            status = _read(WorkerStatus, data) if len(data) <= BEAT_BYTES else None
            if not self._admit(status is not None and status.worker == worker, new=worker not in self._beats):
                return False
            assert status is not None
            error = status.error and last_line(status.error)[:ERROR_CHARS]
            self._beats[worker] = replace(status, error=error)
            return True
        if known and parent == subjects.leases[:-2]:
            limit = LEASE_BYTES
        elif subject == subjects.learner:
            limit = LEARNER_BYTES
        elif subject == subjects.control:
            limit = LEARNER_BYTES + ORDER_BYTES * self._workers
        else:
            limit = -1  # a client has invented the subject
        if not self._admit(len(data) <= limit, new=subject not in self._last):
            return False
        self._last[subject] = data
        return True

    def _admit(self, valid: bool, *, new: bool) -> bool:
        """Count a message; return whether it is kept."""
        own = len(self._beats) + len(self._last)
        # At most as many as are left for all others: the largest job leaves half, also if it exists on paper only.
        kept = valid and (not new or own < max(MESSAGES_OF_JOB, MOST_MESSAGES - self._count.kept))
        self._count.kept += kept and new
        self._count.dropped += not kept
        return kept


def _index(token: str) -> int | None:
    """Return the index of a worker in the last part of a subject, as it is written there; None: it is none."""
    return int(token) if token.isascii() and token.isdecimal() and str(int(token[:9])) == token else None


def _read(kind: type[M], data: bytes | None) -> M | None:
    if data is None:
        return None
    try:
        return unpack(kind, data)
    except MessageInvalid as error:
        log.debug("ignored a message: %s", error)
        return None
