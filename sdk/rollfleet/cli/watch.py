"""A job's newest heartbeats, for the display of `rollfleet run`."""

import asyncio
from collections.abc import Mapping

from rollfleet.nats.link import Link
from rollfleet.transports.roster import Roster
from rollfleet_api.frame_rate import FrameRate
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus


class JobWatch:
    """The newest heartbeats of a job's workers and its learner; none before `listen`.

    Attributes:
        job: The job.
        learner: The learner's newest heartbeat. None: none has come yet.
        frames_per_second: Frames per second over the last 5 s of its heartbeats; after `conclude`, of the whole run.
    """

    def __init__(self, job: CollectorJob) -> None:
        self.job = job
        self.learner: LearnerStatus | None = None
        self._roster = Roster(job.spec.workers, suspect_after_s=job.spec.failure.suspect_after_seconds)
        self.frames_per_second = 0.0
        self._rate = FrameRate(window_s=5.0)
        self._collected, self._began_s, self._until_s = 0, 0.0, 0.0  # by the workers

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

    def conclude(self) -> None:
        """At the end, set `frames_per_second` to the mean of the time in which workers collected."""
        if self.learner and self._until_s > self._began_s:
            frames = min(self.learner.frames, self._collected)  # without those of earlier runs, and dropped ones
            self.frames_per_second = frames / (self._until_s - self._began_s)

    async def _subscribe(self, link: Link) -> None:
        await link.listen(link.subjects.workers, WorkerStatus, self._hear_worker)
        await link.listen(link.subjects.learner, LearnerStatus, self._hear_learner)

    async def _count_beats(self, link: Link) -> None:
        while True:
            await asyncio.sleep(1.0)
            if link.client.is_connected:
                self._roster.tick()

    async def _forget_missed(self) -> None:
        self._roster.forget_missed()

    def _hear_worker(self, status: WorkerStatus) -> None:
        before = self.workers.get(status.worker)
        self._roster.hear(status)
        if status.state is WorkerState.COLLECTING and not self._began_s:
            self._began_s = status.time_s
        if before and before.incarnation == status.incarnation and status.frames > before.frames:
            self._collected += status.frames - before.frames
            self._until_s = status.time_s

    def _hear_learner(self, status: LearnerStatus) -> None:
        self.frames_per_second = self._rate.update(status, status.time_s)
        self.learner = status
