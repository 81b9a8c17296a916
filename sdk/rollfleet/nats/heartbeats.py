"""The heartbeats of a job as its learner exchanges them: it receives its workers', and rank 0 sends its own."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from rollfleet.nats.link import Link
from rollfleet.transports.evaluation_log import EvaluationLog
from rollfleet.transports.roster import Roster
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, Evaluation, LearnerPhase, LearnerStatus, WorkerStatus, pack
from rollfleet_api.ranks import Rank

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0


class LearnerHeartbeats:
    """A learner's view of its workers, and its own heartbeat, once a second.

    Args:
        link: The learner's connection.
        rank: The rank of this process.

    Attributes:
        roster: The workers.
        leader_control: See `Transport`.
        evaluations: The results of evaluation workers; on rank 0.
        status: Returns the content of the heartbeat; None: none is sent.
    """

    def __init__(self, link: Link, job: CollectorJob, rank: Rank) -> None:
        self._link, self._key, self._leads = link, job.key, rank.leads
        self.roster = Roster(job.spec.workers, suspect_after_s=job.spec.failure.suspect_after_seconds)
        self.leader_control: Control | None = None
        self.evaluations = EvaluationLog()
        self.status: Callable[[], LearnerStatus] | None = None
        self._reported: set[int] = set()  # workers whose problem was logged

    async def subscribe(self) -> None:
        """Receive heartbeats from now on; on ranks other than 0 also control."""
        link, subjects = self._link, self._link.subjects
        await link.listen(subjects.workers, WorkerStatus, self.roster.hear)
        if self._leads:
            await link.listen(subjects.evaluations, Evaluation, self.evaluations.add)
        else:
            await link.listen(subjects.control, Control, self.hear_leader)

    def hear_leader(self, control: Control) -> None:
        """Record control of rank 0. A session never continues after its end."""
        known = self.leader_control
        complete = known and known.session == control.session and known.phase is LearnerPhase.COMPLETE
        if known is None or not (complete or known.is_newer_than(control)):
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
                if self._leads:
                    self._log_problems()
            await self.send()

    async def send(self) -> None:
        """Send this process's heartbeat now."""
        if self.status:
            now = replace(self.status(), evaluation=self.evaluations.newest, time_s=time.time())
            await self._link.publish(self._link.subjects.learner, pack(now))

    def forget_missed(self) -> None:
        """Forget missed heartbeats: none could arrive for a while."""
        self.roster.forget_missed()

    def _log_problems(self) -> None:
        """Log each worker's problem once, until the worker recovers."""
        problems = self.roster.problems()
        for worker, problem in problems.items():
            if worker not in self._reported:
                log.warning("%s: %s", self._key, problem)
        self._reported = set(problems)
