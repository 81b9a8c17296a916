"""The job of a process: its owner keeps it, mounts it into pods, and sends it to all on each edit and when one asks."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from nats.aio.msg import Msg
from pydantic import ValidationError

from rollfleet.errors import JobEnded, JobInvalid, JobNotFound
from rollfleet.nats.link import Link, unpack_or_skip
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus
from rollfleet_api.publication import DELETED, published_bytes
from rollfleet_api.state.processes import Heartbeats
from rollfleet_api.state.status import reported
from rollfleet_api.status import CollectorJobStatus, ConditionType
from rollfleet_api.subjects import Ask

ASK_AGAIN_S = 0.5


async def read_job(link: Link, *, timeout_s: float, workers: int = 1) -> CollectorJob:
    """Return the job: as it is mounted into this pod, or else as its owner sends it.

    Args:
        link: A connection to the job's NATS.
        timeout_s: How long to wait for the owner.
        workers: The least number of workers that it must have: a mounted job may be older than an edit.

    Raises:
        JobNotFound: There is no file, and no owner answered within `timeout_s`.
        JobInvalid: The mounted file is not a job of this version of Rollfleet.
    """
    known = _mounted(link)
    if known and known.spec.workers >= workers:
        return known
    arrived = asyncio.Event()

    def hear(job: CollectorJob) -> None:
        nonlocal known
        known = job
        if job.spec.workers >= workers:
            arrived.set()

    subscription = await link.listen(link.subjects.spec, CollectorJob, hear)
    try:
        await _asked(link, arrived, timeout_s)
    finally:
        await subscription.unsubscribe()
    if known is None:
        raise _no_owner(link, timeout_s)
    return known


class FollowedJob:
    """Follows the edits of a job, as its owner sends them.

    Args:
        link: The connection: it has this job's subjects from now on.
        job: The job as this process knows it.
        on_edit: Called on the link's thread with each edited job.
        on_end: Called there once the owner has another job of this name, or has deleted it.
    """

    def __init__(
        self,
        link: Link,
        job: CollectorJob,
        on_edit: Callable[[CollectorJob], object],
        on_end: Callable[[JobEnded], object],
    ) -> None:
        self._link, self._on_edit, self._on_end = link, on_edit, on_end
        self._owner_heard = asyncio.Event()
        self.job = job
        link.follow(job)

    def ended(self, *, complete: bool = True) -> JobEnded | None:
        """Return how the job ended, as its owner says, for a process that waits for it; None: it has not.

        `complete`: Whether that includes a complete job. A failed one always counts.
        """
        job = self.job
        if job.status is None or not job.has_ended:
            return None
        if completed := job.status.held(ConditionType.COMPLETE):
            return JobEnded(f"the job {job.key} is complete: {completed.message}") if complete else None
        failed = job.status.held(ConditionType.FAILED)
        return JobEnded(f"the job {job.key} has failed: {failed.message} ({failed.reason})") if failed else None

    async def subscribe(self) -> None:
        """Follow edits from now on."""
        await self._link.client.subscribe(self._link.subjects.spec, cb=self._hear)
        self._link.on_deleted(self._end)

    async def wait_for_owner(self, timeout_s: float) -> None:
        """Wait until the owner has sent the job, and ask it to.

        Raises:
            JobNotFound: It did not answer within `timeout_s`.
        """
        if not await _asked(self._link, self._owner_heard, timeout_s):
            raise _no_owner(self._link, timeout_s)

    def _end(self) -> None:
        self._on_end(JobEnded(f"the job {self._link.subjects.key} was deleted"))

    async def _hear(self, message: Msg) -> None:
        if message.data == DELETED:
            self._end()
            return
        if (job := unpack_or_skip(CollectorJob, message.data, message.subject)) is None:
            return
        known, self.job = self.job, job
        self._owner_heard.set()
        if known.metadata.uid and job.metadata.uid != known.metadata.uid:
            self._on_end(JobEnded(f"the job {job.key} was deleted, and another one has its name"))
        elif known.spec != job.spec:
            self._on_edit(job)


class JobOwner:
    """Sends a job to its processes: now, and whenever one asks. A process that starts workers is its job's owner."""

    def __init__(self, link: Link, job: CollectorJob) -> None:
        self._link, self._job, self._learner = link, job, LearnerStatus(session=0)
        self._deleted = False
        link.follow(job)

    async def start(self) -> None:
        """Answer from now on."""
        await self._link.listen(self._link.subjects.learner(0), LearnerStatus, self._hear)
        await self._link.on_ask(Ask.JOB, self._send)
        self._link.on_reconnect(self._send)
        await self._send()

    async def delete(self) -> None:
        """Tell the job's processes that it is over."""
        self._deleted = True
        await self._send()

    def _hear(self, status: LearnerStatus) -> None:
        if status.session >= self._learner.session:
            self._learner = status

    async def _send(self) -> None:
        """Send the job, with the counts that a learner continues if all other processes are gone."""
        status = CollectorJobStatus().model_copy(update=reported(Heartbeats(learner=self._learner)))
        job = self._job.model_copy(update={"status": status})
        data = DELETED if self._deleted else published_bytes(job, counts=True)
        await self._link.publish(self._link.subjects.spec, data)


async def _asked(link: Link, arrived: asyncio.Event, timeout_s: float) -> bool:
    """Ask the owner for the job until it arrived. Returns whether it did in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not arrived.is_set():
                await link.ask(Ask.JOB)
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_AGAIN_S):
                        await arrived.wait()
    return arrived.is_set()


def _no_owner(link: Link, timeout_s: float) -> JobNotFound:
    return JobNotFound(
        f"no owner of the job {link.subjects.key} answered on this NATS server within {timeout_s:g} s; apply the job, "
        "or start it with `rollfleet run` or `rollfleet submit --nats`"
    )


def _mounted(link: Link) -> CollectorJob | None:
    file = link.address.spec
    if file is None:
        return None
    try:
        job = CollectorJob.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise JobInvalid(f"{file}: not a job of this version of Rollfleet: {error}") from error
    return job if job.key == link.subjects.key else None  # a pod's program may connect to another job
