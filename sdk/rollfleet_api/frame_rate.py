"""Frames per second of a job, from the heartbeats of its learner."""

from collections import deque

from rollfleet_api.messages import LearnerStatus

STALE_S = 15.0
"""A learner without a heartbeat for this long takes no frames."""


class FrameRate:
    """The heartbeats of one job's learner in a window of time.

    Args:
        window_s: The length of the window.
    """

    def __init__(self, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._beats: deque[LearnerStatus] = deque()

    def update(self, learner: LearnerStatus | None, now_s: float) -> float:
        """Add the newest heartbeat and return frames per second."""
        beats = self._beats
        if learner is None or now_s - learner.time_s > STALE_S:
            beats.clear()
            return 0.0
        last = beats[-1] if beats else learner
        if learner.session != last.session or learner.frames < last.frames or learner.time_s < last.time_s:
            beats.clear()  # another learner, or a clock that was set back
        if not beats or learner.time_s > beats[-1].time_s:
            beats.append(learner)
        # One heartbeat from before the window stays, so that the heartbeats fill the window.
        while len(beats) > 2 and beats[1].time_s <= learner.time_s - self._window_s:
            beats.popleft()
        elapsed_s = beats[-1].time_s - beats[0].time_s
        return (beats[-1].frames - beats[0].frames) / elapsed_s if elapsed_s > 0 else 0.0
