"""A job's newest heartbeats, for the display of `rollfleet run`."""

import asyncio
import time
from collections.abc import Mapping

from rollfleet.nats.link import Link
from rollfleet.transports.roster import Roster
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, WorkerStatus

RATE_OVER_S = 5.0  # the time span of frames per second


class JobWatch:
    """The newest heartbeats of a job's workers and its learner; none before `listen`.

    Attributes:
        job: The job.
        learner: The learner's newest heartbeat. None: none has come yet.
    """

    def __init__(self, job: CollectorJob) -> None:
        self.job = job
        self.learner: LearnerStatus | None = None
        self._roster = Roster(job.spec.workers, suspect_after_s=job.spec.failure.suspect_after_seconds)
        self._history: list[tuple[float, int]] = []  # (arrival time, frames until then)

    def listen(self, link: Link) -> None:
        """Receive heartbeats from now on, over a connection that may subscribe to them."""
        link.call(self._subscribe(link))
        link.on_reconnect(self._forget_missed)
        link.begin(self._count_beats(link))

    @property
    def workers(self) -> Mapping[int, WorkerStatus]:
        """The newest heartbeats of the workers, by index."""
        return self._roster.statuses()

    def problems(self) -> Mapping[int, str]:
        """Descriptions of workers' problems, by index."""
        return self._roster.problems()

    def frames_per_second(self) -> float:
        """Return the learner's frames per second over the last `RATE_OVER_S` seconds."""
        if len(self._history) < 2:
            return 0.0
        (began, before), (ended, after) = self._history[0], self._history[-1]
        return (after - before) / (ended - began) if ended > began else 0.0

    async def _subscribe(self, link: Link) -> None:
        await link.listen(link.subjects.workers, WorkerStatus, self._roster.hear)
        await link.listen(link.subjects.learner, LearnerStatus, self._hear_learner)

    async def _count_beats(self, link: Link) -> None:
        while True:
            await asyncio.sleep(1.0)
            if link.client.is_connected:
                self._roster.tick()

    async def _forget_missed(self) -> None:
        self._roster.forget_missed()

    def _hear_learner(self, status: LearnerStatus) -> None:
        now = time.monotonic()
        kept = [(when, frames) for when, frames in self._history if now - when <= RATE_OVER_S]
        self._history = [*kept, (now, status.frames)]
        self.learner = status
