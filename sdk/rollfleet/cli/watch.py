"""Follows the heartbeats of a job: who is there, and how it goes."""

import asyncio
import time
from collections.abc import Mapping

from nats.aio.msg import Msg

from rollfleet.nats.link import Link
from rollfleet.transports.roster import Roster
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, MessageInvalid, WorkerStatus, unpack

RATE_OVER_S = 5.0  # frames per second are over so many seconds


class JobWatch:
    """The newest heartbeats of a job's workers and its learner.

    Args:
        link: A connection that may subscribe to them.
        job: Whose they are.

    Attributes:
        learner: None: no learner has said anything yet.
    """

    def __init__(self, link: Link, job: CollectorJob) -> None:
        self.learner: LearnerStatus | None = None
        self._roster = Roster(job.spec.workers, suspect_after_s=job.spec.failure.suspect_after_seconds)
        self._history: list[tuple[float, int]] = []  # times of arrival, and frames then
        link.call(self._subscribe(link))
        link.on_reconnect(self._begin_anew)
        link.begin(self._count_beats(link))

    @property
    def workers(self) -> Mapping[int, WorkerStatus]:
        """The newest heartbeats of the workers, by index."""
        return self._roster.statuses()

    def troubles(self) -> Mapping[int, str]:
        """What is wrong with workers, in words, by index."""
        return self._roster.troubles()

    def frames_per_second(self) -> float:
        """Frames that the learner was handed, over the last seconds."""
        if len(self._history) < 2:
            return 0.0
        (began, before), (ended, after) = self._history[0], self._history[-1]
        return (after - before) / (ended - began) if ended > began else 0.0

    async def _subscribe(self, link: Link) -> None:
        await link.client.subscribe(link.subjects.workers, cb=self._on_worker)
        await link.client.subscribe(link.subjects.learner, cb=self._on_learner)

    async def _count_beats(self, link: Link) -> None:
        while True:
            await asyncio.sleep(1.0)
            if link.client.is_connected:
                self._roster.tick()

    async def _begin_anew(self) -> None:
        self._roster.begin_anew()

    async def _on_worker(self, message: Msg) -> None:
        try:
            status = unpack(WorkerStatus, message.data)
        except MessageInvalid:
            return
        self._roster.hear(status)

    async def _on_learner(self, message: Msg) -> None:
        try:
            status = unpack(LearnerStatus, message.data)
        except MessageInvalid:
            return
        now = time.monotonic()
        kept = [(when, frames) for when, frames in self._history if now - when <= RATE_OVER_S]
        self._history = [*kept, (now, status.frames)]
        self.learner = status
