"""A job on its NATS: the operator is its owner, and asks its processes for their heartbeats.

All jobs share the operator's memory. Therefore it keeps only messages that it reads later, of a limited size, and a
limited number for all jobs together. At each look NATS sends it a limited number: a worker that floods its job's NATS
costs the operator little.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, MessageInvalid, WorkerStatus, unpack
from rollfleet_api.publication import DELETED, published_bytes, subjects_of
from rollfleet_api.state.processes import Heartbeats
from rollfleet_api.subjects import Ask
from rollfleet_api.text import last_line
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import Connection
from rollfleet_operator.nats_access import Login

log = logging.getLogger(__name__)

M = TypeVar("M")

QUIET_S: Final = 0.1
"""Seconds without an answer that end a look, once as many processes have answered as at the last one."""

ANSWER_S: Final = 1.0
"""Seconds to wait at most."""

FLUSH_S: Final = 4
"""Less than `server_port.TIMEOUT_S`, which would end a look before it has closed a dead connection."""

ANSWERS: Final = 8
"""Processes that ask for the job between two looks and get it at once."""

AT_ONCE: Final = 64
"""The most messages that are read before the operator does other work."""

SPARE: Final = 64
"""Messages that may come besides two of each worker."""

MOST_MESSAGES: Final = 100_000
"""The most kept messages of all jobs. A job may keep as many as all jobs leave free: half of them, if it is alone."""

MESSAGES_OF_JOB: Final = 512
"""The messages of a job that are kept in any case, so that large jobs take nothing from small ones."""

BEAT_BYTES: Final = 1 << 16  # of a heartbeat, with a worker's last error
PENDING_BYTES: Final = 16 << 20  # of messages that wait to be read
ERROR_CHARS: Final = 500  # of the line of the error that is kept


@dataclass(slots=True)
class MessageCount:
    """Number of messages of all jobs: kept, and dropped as too large, too many, or of no worker of their job."""

    kept: int = 0
    dropped: int = 0


class JobOnNats:
    """One job on its NATS.

    Attributes:
        uid: The job's UID.
        nats: The connection to the job's NATS.
    """

    def __init__(self, job: CollectorJob, login: Login, count: MessageCount) -> None:
        self.uid, self.nats = job.metadata.uid, Connection(login, job.key)
        self._subjects, self._count = subjects_of(job), count
        self._workers = 0  # the greatest number of workers so far: messages of others are dropped
        self._present = job.status.workers.ready if job.status else 0  # number of workers that answered the last look
        self._beats: dict[int, WorkerStatus] = {}
        self._learner: LearnerStatus | None = None
        self._listening: list[Subscription] = []  # between two looks

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """Send the job to its processes, and return their heartbeats: of those that do not answer the last ones.

        Raises:
            NatsUnavailable: NATS did not answer.
        """
        self._workers = max(self._workers, job.spec.workers)
        client = await self.nats.client()
        try:
            earlier = await self._listen(client, job)
            await self._look(client, published_bytes(job, counts=True))
            for each in earlier:  # only now: what came before this look has been heard
                await _end(each)
        except (NatsError, TimeoutError, OSError) as error:
            await self.nats.close()  # a new connection finds another server
            raise NatsUnavailable(f"NATS did not return the heartbeats of {self._subjects.key}: {error!r}") from error
        return Heartbeats(workers=dict(self._beats), learner=self._learner)

    async def end(self) -> None:
        """Tell the job's processes that it was deleted.

        Raises:
            NatsUnavailable: NATS did not answer.
        """
        client = await self.nats.client()
        try:
            await client.publish(self._subjects.spec, DELETED)
            await client.flush(FLUSH_S)
        except (NatsError, TimeoutError, OSError) as error:
            await self.nats.close()
            raise NatsUnavailable(f"NATS did not take the end of {self._subjects.key}: {error!r}") from error

    async def close(self) -> None:
        """Disconnect for good. The kept messages count no longer."""
        await self.nats.close()
        self._count.kept -= len(self._beats)

    async def _look(self, client: Client, job: bytes) -> None:
        heard, came, read = set[int](), asyncio.Event(), 0

        async def on_beat(message: Msg) -> None:
            nonlocal read
            heard.add(self._keep(message.subject, message.data))
            came.set()
            read += 1
            if not read % AT_ONCE:
                await asyncio.sleep(0)

        subjects = self._subjects
        beats = await client.subscribe(
            subjects.workers, cb=on_beat, pending_bytes_limit=PENDING_BYTES, pending_msgs_limit=0
        )
        await beats.unsubscribe(limit=2 * self._workers + SPARE)
        try:
            await client.publish(subjects.spec, job)
            await client.publish(subjects.ask(Ask.HEARTBEATS))
            await client.flush(FLUSH_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    while await _within(QUIET_S, came) or len(heard) < self._present:
                        came.clear()
        finally:
            await _end(beats)
        self._present = len(heard)

    async def _listen(self, client: Client, job: CollectorJob) -> list[Subscription]:
        """Until the next look, hear the learner, whose last word may be short, and answer processes that ask.

        A flood of heartbeats or questions gets no further than their number. Returns the subscriptions of the look
        before.
        """
        before, self._listening = self._listening, []

        async def on_ask(_: Msg) -> None:
            await client.publish(self._subjects.spec, published_bytes(job, counts=True))

        async def on_learner(message: Msg) -> None:
            if (status := _read(LearnerStatus, message.data)) and not self._is_over(status):
                self._learner = status

        subjects = self._subjects
        for subject, hear, most in (
            (subjects.ask(Ask.JOB), on_ask, ANSWERS),
            (subjects.learner(0), on_learner, SPARE),
        ):
            subscription = await client.subscribe(subject, cb=hear)
            await subscription.unsubscribe(limit=most)
            self._listening.append(subscription)
        return before

    def _is_over(self, status: LearnerStatus) -> bool:
        """Whether a learner's heartbeat is of one that was replaced."""
        return self._learner is not None and status.session < self._learner.session

    def _keep(self, subject: str, data: bytes) -> int:
        """Keep a worker's heartbeat, or count it as dropped. Returns the worker's index; -1: it is of none."""
        name = subject.rpartition(".")[2]
        worker = int(name) if len(name) <= 5 and name.isascii() and name.isdecimal() else self._workers
        status = _read(WorkerStatus, data) if worker < self._workers and len(data) <= BEAT_BYTES else None
        if status is None or status.worker != worker or not self._has_room(new=worker not in self._beats):
            self._count.dropped += 1
            return -1
        short = replace(status, error=last_line(status.error)[:ERROR_CHARS]) if status.error else status
        self._beats[worker] = short
        return worker

    def _has_room(self, *, new: bool) -> bool:
        """Return whether a message may be kept, and count a new one."""
        # At most as many as are left for all others: the largest job leaves half, also if it exists on paper only.
        room = not new or len(self._beats) < max(MESSAGES_OF_JOB, MOST_MESSAGES - self._count.kept)
        self._count.kept += new and room
        return room


async def _end(subscription: Subscription) -> None:
    with suppress(NatsError):  # NATS has sent the most, or the connection is another one
        await subscription.unsubscribe()


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _read(kind: type[M], data: bytes) -> M | None:
    try:
        return unpack(kind, data)
    except MessageInvalid as error:
        log.debug("ignored a message: %s", error)
        return None
