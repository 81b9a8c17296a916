"""The heartbeats of a job as its learner exchanges them: it receives those of all processes, and sends its own."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from nats.aio.msg import Msg

from rollfleet.nats.link import Link, unpack_or_skip
from rollfleet.nats.numbering import Numbering
from rollfleet.transports.evaluation_log import EvaluationLog
from rollfleet.transports.learner_side import Resumed
from rollfleet.transports.roster import Roster
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import (
    Control,
    Evaluation,
    LearnerPhase,
    LearnerStatus,
    Progress,
    WorkerStatus,
    pack,
)
from rollfleet_api.ranks import Rank
from rollfleet_api.subjects import Ask
from rollfleet_api.transfers import Receipt
from rollfleet_api.versions import count_of, session_at

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
LEARNER_S = 0.1  # for the learner that this one replaces to answer, at least
COMPLETE_S = 0.02  # between two looks whether all workers know that the job is complete
QUIET_S, JOIN_S = 0.25, 2.0  # a learner that joins waits until no process has answered for this long; at most


class LearnerHeartbeats:
    """A learner's view of the other processes of its job, and its own heartbeat: once a second, and when one asks.

    Args:
        link: The learner's connection.
        rank: The rank of this process.
        on_replaced: Called once another process has this rank, or is of a learner with another number of ranks.
        send_control: Sends control: before a worker gets its number, the others know that it is given.

    Attributes:
        roster: The workers.
        numbering: The processes that they are.
        session: The session of this process: of two processes of one rank, the one with the greater has the job.
        leader_control: See `Transport`.
        evaluations: The results of evaluation workers; on rank 0.
        status: Returns what the learner counts; at first, what it continues.
    """

    def __init__(
        self,
        link: Link,
        job: CollectorJob,
        rank: Rank,
        on_replaced: Callable[[], object],
        send_control: Callable[[], Awaitable[None]],
    ) -> None:
        self._link, self._key, self._rank = link, job.key, rank
        self._on_replaced, self._send_control = on_replaced, send_control
        self.roster = Roster(job.spec.workers, suspect_after_s=job.spec.failure.suspect_after_seconds)
        self.numbering = Numbering()
        self.leader_control: Control | None = None
        self.evaluations = EvaluationLog()
        self.status: Callable[[], LearnerStatus] = partial(LearnerStatus, session=0)
        self.session, self._process = 0, secrets.randbits(32)  # 0: it joins
        self._rival = 0  # the greatest session of a learner that this one replaces
        self._followed = Progress(session=0)  # the newest that a worker named
        self._reported: set[int] = set()  # workers whose problem was logged
        self._heard = asyncio.Event()

    async def hear(self, wait_s: float) -> None:
        """Hear all other processes of the job from now on: return once they have answered.

        Args:
            wait_s: How long an answer may take: twice the way to the server, say.
        """
        link, subjects = self._link, self._link.subjects
        await link.listen(subjects.workers, WorkerStatus, self._hear)
        await link.client.subscribe(subjects.learner("*"), cb=self._hear_learner)
        await link.listen(subjects.control, Control, self.hear_leader)
        if self._rank.leads:
            await link.listen(subjects.evaluations, Evaluation, self.evaluations.add)
        await link.on_ask(Ask.HEARTBEATS, self._answer)
        await link.ask(Ask.HEARTBEATS)
        await link.ask(Ask.CONTROL)
        until_s = time.monotonic() + JOIN_S + wait_s
        await asyncio.sleep(LEARNER_S + wait_s)
        while len(self.roster.statuses()) < len(self.roster.members()) and time.monotonic() < until_s:
            self._heard.clear()
            try:
                async with asyncio.timeout(QUIET_S + wait_s):
                    await self._heard.wait()
            except TimeoutError:
                break

    @property
    def continues(self) -> bool:
        """Whether a process knows of an earlier learner."""
        return self.leader_control is not None or self._followed.session > 0

    async def begin(self, known: Progress) -> Resumed:
        """Continue the job as far as its processes know it, and its owner. Returns its state, with this session."""
        control = self.leader_control
        told = [self._followed, known, *([control.progress] if control else [])]
        found = max(told, key=_order)
        self.numbering.start_at(max(each.next_incarnation for each in told))
        now = session_at(time.time())
        self.session = max(now, found.session + 1, self._rival + 1) if self._rank.leads else max(now, self._rival + 1)
        version = max(count_of(found.target), found.version)
        self.status = partial(
            LearnerStatus, session=self.session, version=version, frames=found.frames, batches=found.batches
        )
        await self.send()
        return Resumed(
            session=self.session if self._rank.leads else found.session,
            version=version,
            target=found.target,
            # Of several ranks it names the frames of all.
            frames=found.frames if self._rank.ranks == 1 else 0,
            batches=found.batches if self._rank.ranks == 1 else 0,
            env_version=max(each.env_version for each in told),
        )

    def hear_leader(self, control: Control) -> None:
        """Record control of rank 0. A session never continues after its end."""
        if self._rank.leads and self.session:
            return  # its own
        known = self.leader_control
        complete = known and known.session == control.session and known.phase is LearnerPhase.COMPLETE
        if known is None or not (complete or known.order > control.order):
            self.leader_control = control

    def follow(self, job: CollectorJob) -> None:
        """Follow an edit of the job."""
        self.roster.resize(job.spec.workers)
        self.roster.suspect_after_s = job.spec.failure.suspect_after_seconds

    async def run(self) -> None:
        """Count and send heartbeats until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self._link.client.is_connected:
                self.roster.tick()
                if self._rank.leads:
                    self._log_problems()
            await self.send()

    async def send(self) -> None:
        """Send this process's heartbeat now."""
        await self._link.publish(self._link.subjects.learner(self._rank.rank, self._rank.ranks), pack(self.now()))

    def now(self) -> LearnerStatus:
        """Return this process's heartbeat."""
        return replace(
            self.status(),
            session=self.session,
            process=self._process,
            next_incarnation=self.numbering.next,
            evaluation=self.evaluations.newest,
            time_s=time.time(),
        )

    def wait_complete(self, timeout_s: float, *, away_s: float) -> None:
        """Wait until each worker that is there knows that the job is complete. Not on the link's thread.

        Args:
            timeout_s: How long, while connected.
            away_s: How long altogether.
        """
        until_s = time.monotonic() + away_s
        while timeout_s > 0 and time.monotonic() < until_s and not all(map(self._is_complete, self.roster.members())):
            time.sleep(COMPLETE_S)
            timeout_s -= COMPLETE_S * self._link.client.is_connected

    def _is_complete(self, worker: int) -> bool:
        status = self.roster.statuses().get(worker)
        return status is None or status.state.ended or bool(status.follows and status.follows.complete)

    def _hear(self, status: WorkerStatus) -> None:
        if status.follows and not status.state.ended:
            self._followed = max(self._followed, status.follows, key=_order)
        if not (self.session and self._rank.leads):
            self.numbering.learn(status)
        else:
            given = self.numbering.next
            if answer := self.numbering.hear(status):
                self._link.begin(self._number(status.worker, answer, first=self.numbering.next > given))
        if self.numbering.is_current(status):
            self.roster.hear(status)
        self._heard.set()
        if self._rank.leads and self._followed.session > self.session > 0:  # its worker did not answer in time
            self._on_replaced()

    async def _number(self, worker: int, answer: Receipt, *, first: bool) -> None:
        """Answer a worker. Of a number that is the first of its kind, workers and the job's owner hear before."""
        if first:
            await self._send_control()
            await self.send()
        await self._link.publish(self._link.subjects.taken(worker), pack(replace(answer, session=self.session)))

    async def _hear_learner(self, message: Msg) -> None:
        """See whether a process of this rank has connected, or one of a learner with another number of ranks."""
        other = unpack_or_skip(LearnerStatus, message.data, message.subject)
        rank, ranks = message.subject.split(".")[-2:]
        fellow = ranks == str(self._rank.ranks) and rank != str(self._rank.rank)
        if other is None or fellow or other.process == self._process:
            return
        self._rival = max(self._rival, other.session)
        if self.session and (other.session, other.process) > (self.session, self._process):
            self._on_replaced()

    async def _answer(self) -> None:
        if self.session:
            await self.send()

    def _log_problems(self) -> None:
        """Log each worker's problem once, until the worker recovers."""
        problems = self.roster.problems()
        for worker, problem in problems.items():
            if worker not in self._reported:
                log.warning("%s: %s", self._key, problem)
        self._reported = set(problems)


def _order(progress: Progress) -> tuple[int, int, int, int]:
    return progress.session, progress.target, progress.frames, progress.batches
