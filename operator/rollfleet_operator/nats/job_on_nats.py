"""A job on its NATS: published, and read: the last message of each subject of its stream, each message once.

All jobs share the operator's memory. Therefore it keeps only messages that it reads later, of a limited size, and a
limited number for all jobs together. NATS holds further messages back until those on their way are read.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerStatus, MessageInvalid, WorkerStatus, unpack
from rollfleet_api.streams import provisioning, subjects_of
from rollfleet_api.text import last_line
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import REQUEST_TIMEOUT_S, Connection
from rollfleet_operator.nats_access import Login
from rollfleet_operator.nats_port import Heartbeats

log = logging.getLogger(__name__)

M = TypeVar("M")

IDLE_S: Final = 5.0
"""Seconds after which NATS sends a sign of life, which flow control demands, and forgets a consumer."""

AT_ONCE: Final = 64
"""The most messages that are read before the operator does other work."""

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
        self._published: tuple[Client, int | None] | None = None  # by which connection, and which generation
        self._next = 1  # the position in the job's stream of the first message that was not read
        self._beats: dict[int, WorkerStatus] = {}
        self._last: dict[str, bytes] = {}  # the other messages

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """Return the last messages, after the job is published if NATS may lack it.

        If NATS has lost its state, the kept leases, control and learner's status are stored again: a learner or a
        worker that restarts needs them. Weights are not among them: the learner sends them again.

        Raises:
            NatsUnavailable: NATS did not answer.
        """
        self._workers = max(self._workers, job.spec.workers)
        wanted = await self.nats.client(), job.metadata.generation
        if wanted != self._published:
            await self.nats.carry_out(provisioning(job, dict(self._last)))
            self._published, self._next = wanted, 1  # the stream may be a new one
        try:
            await self._read_new(wanted[0])
        except (NatsError, TimeoutError, OSError) as error:
            await self.nats.close()  # a new connection finds another server, and makes a stream that is gone
            raise NatsUnavailable(f"NATS did not return the heartbeats of {self._subjects.key}: {error}") from error
        return Heartbeats(
            workers=dict(self._beats),
            learner=_read(LearnerStatus, self._last.get(self._subjects.learner)),
            control=_read(Control, self._last.get(self._subjects.control)),
        )

    async def close(self) -> None:
        """Disconnect for good. The kept messages count no longer."""
        await self.nats.close()
        self._count.kept -= len(self._beats) + len(self._last)

    async def _read_new(self, client: Client) -> None:
        """Read the messages since the last time, by a consumer of the job's stream that NATS forgets afterwards."""
        subjects, inbox, read, arrived = self._subjects, client.new_inbox(), 0, asyncio.Event()

        async def on_message(message: Msg) -> None:
            nonlocal read
            if "Status" not in (message.headers or {}):
                self._keep(message.subject, message.data)
                self._next = message.metadata.sequence.stream + 1
                read += 1
                arrived.set()
                if not read % AT_ONCE:
                    await asyncio.sleep(0)
            elif message.reply:  # NATS waits until the messages from before this one are read
                await message.respond(b"")

        consumer = ConsumerConfig(
            deliver_subject=inbox,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._next,
            filter_subjects=[subjects.workers, subjects.learner, subjects.control, subjects.leases],
            ack_policy=AckPolicy.NONE,
            flow_control=True,
            idle_heartbeat=IDLE_S,
            inactive_threshold=IDLE_S,
        )
        subscription = await client.subscribe(inbox, cb=on_message)
        try:
            created = await client.jsm(timeout=REQUEST_TIMEOUT_S).add_consumer(subjects.state_stream, consumer)
            waiting = (created.num_pending or 0) + (created.delivered.consumer_seq if created.delivered else 0)
            while read < waiting:
                arrived.clear()
                await arrived.wait()
        finally:
            await subscription.unsubscribe()

    def _keep(self, subject: str, data: bytes) -> None:
        """Keep a message if it is read later, and count it if not."""
        subjects, last = self._subjects, subject.rpartition(".")[2]
        worker = int(last) if last.isascii() and last.isdecimal() else self._workers
        limits = {subjects.learner: LEARNER_BYTES, subjects.control: LEARNER_BYTES + ORDER_BYTES * self._workers}
        if worker < self._workers:
            limits |= {subjects.worker(worker): BEAT_BYTES, subjects.lease(worker): LEASE_BYTES}
        valid = len(data) <= limits.get(subject, -1)  # a client may have invented the subject
        if valid and subject == subjects.worker(worker):
            status = _read(WorkerStatus, data)
            if status and status.worker == worker and self._has_room(new=worker not in self._beats):
                short = replace(status, error=last_line(status.error)[:ERROR_CHARS]) if status.error else status
                self._beats[worker] = short
                return
        elif valid and self._has_room(new=subject not in self._last):
            self._last[subject] = data
            return
        self._count.dropped += 1

    def _has_room(self, *, new: bool) -> bool:
        """Return whether a message may be kept, and count a new one."""
        own = len(self._beats) + len(self._last)
        # At most as many as are left for all others: the largest job leaves half, also if it exists on paper only.
        room = not new or own < max(MESSAGES_OF_JOB, MOST_MESSAGES - self._count.kept)
        self._count.kept += new and room
        return room


def _read(kind: type[M], data: bytes | None) -> M | None:
    if data is None:
        return None
    try:
        return unpack(kind, data)
    except MessageInvalid as error:
        log.debug("ignored a message: %s", error)
        return None
