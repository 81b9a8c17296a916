"""A job's newest heartbeats, for the display of `rollfleet run`."""

import asyncio
from collections.abc import Mapping

from rollfleet.nats.link import Link
from rollfleet.transports.roster import Roster
from rollfleet_api.frame_rate import STALE_S, FrameRate
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, WorkerStatus
from rollfleet_api.state.processes import Heartbeats


class JobWatch:
    """The newest heartbeats of a job's workers and its learner; none before `listen`.

    Attributes:
        job: The job.
        learner: The learner's newest heartbeat. None: none has come yet.
        frames_per_second: Frames per second over the last 5 s of its heartbeats.
        mean_frames_per_second: The mean of this learner, without the time before its first frames and after its last.
    """

    def __init__(self, job: CollectorJob) -> None:
        self.job = job
        self.learner: LearnerStatus | None = None
        self._roster = Roster(job.spec.workers, suspect_after_s=job.spec.failure.suspect_after_seconds)
        self.frames_per_second = self.mean_frames_per_second = 0.0
        self._first: LearnerStatus | None = None  # the last heartbeat before frames came
        self._rate = FrameRate(window_s=5.0)
        self._silent_s = 0  # seconds in which the learner could be heard, and was not

    def listen(self, link: Link) -> None:
        """Receive heartbeats from now on, over a connection of the job's owner."""
        link.call(self._subscribe(link))
        link.on_reconnect(self._forget_missed)
        link.begin(self._count_beats(link))

    @property
    def workers(self) -> Mapping[int, WorkerStatus]:
        """The newest heartbeats of the workers, by index."""
        return self._roster.statuses()

    @property
    def heartbeats(self) -> Heartbeats:
        """The newest heartbeats of all."""
        return Heartbeats(workers=self.workers, learner=self.learner)

    def problems(self) -> Mapping[int, str]:
        """Descriptions of workers' problems, by index."""
        return self._roster.problems()

    async def _subscribe(self, link: Link) -> None:
        await link.listen(link.subjects.workers, WorkerStatus, self._roster.hear)
        await link.listen(link.subjects.learner(0), LearnerStatus, self._hear_learner)

    async def _count_beats(self, link: Link) -> None:
        while True:
            await asyncio.sleep(1.0)
            if link.client.is_connected:
                self._roster.tick()
                self._silent_s += 1
                if self._silent_s > STALE_S:
                    self.frames_per_second = 0.0

    async def _forget_missed(self) -> None:
        self._roster.forget_missed()

    def _hear_learner(self, status: LearnerStatus) -> None:
        self._silent_s = 0
        self.frames_per_second = self._rate.update(status, status.time_s)
        first, before, self.learner = self._first, self.learner, status
        if not (first and before) or status.session != first.session or status.frames <= first.frames:
            self._first = status
        elif status.frames > before.frames:
            self.mean_frames_per_second = (status.frames - first.frames) / max(status.time_s - first.time_s, 1e-9)
