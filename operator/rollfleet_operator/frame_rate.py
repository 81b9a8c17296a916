"""Frames a second of a job, over the last half minute of its learner's heartbeats."""

from collections import deque

from rollfleet_api.messages import LearnerStatus

WINDOW_S = 30.0
STALE_S = 15.0
"""A learner that has said nothing for so long takes no frames."""


class FrameRate:
    """Remembers heartbeats of one job."""

    def __init__(self) -> None:
        self._heard: deque[LearnerStatus] = deque()

    def update(self, learner: LearnerStatus | None, now_s: float) -> float:
        """Frames a second, with the newest heartbeat taken into account."""
        heard = self._heard
        if learner is None or now_s - learner.time_s > STALE_S:
            heard.clear()
            return 0.0
        if heard and (learner.session != heard[-1].session or learner.frames < heard[-1].frames):
            heard.clear()
        if not heard or learner.time_s > heard[-1].time_s:
            heard.append(learner)
        # One that is older than the window stays, so that the window is filled.
        while len(heard) > 2 and heard[1].time_s <= learner.time_s - WINDOW_S:
            heard.popleft()
        elapsed_s = heard[-1].time_s - heard[0].time_s
        return (heard[-1].frames - heard[0].frames) / elapsed_s if elapsed_s > 0 else 0.0
