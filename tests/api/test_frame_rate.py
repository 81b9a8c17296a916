"""Frames a second."""

from rollfleet_api.frame_rate import STALE_S, FrameRate
from rollfleet_api.messages import LearnerStatus


def beat(time_s: float, frames: int, session: int = 1) -> LearnerStatus:
    return LearnerStatus(session=session, frames=frames, time_s=time_s)


def test_rate_is_over_the_last_half_minute() -> None:
    rate = FrameRate()
    for second in range(61):
        found = rate.update(beat(second, 10 * second if second < 30 else 300 + 50 * (second - 30)), second)
    assert found == 50.0


def test_window_of_one_second_has_the_last_two_heartbeats() -> None:
    rate = FrameRate(window_s=1.0)
    assert [rate.update(beat(second, second**2), second) for second in range(4)] == [0.0, 1.0, 3.0, 5.0]


def test_silent_learner_takes_no_frames() -> None:
    rate = FrameRate()
    rate.update(beat(0, 0), 0)
    assert rate.update(beat(1, 10), 1) == 10.0
    assert rate.update(beat(1, 10), 1 + STALE_S + 0.1) == 0.0


def test_new_learner_starts_a_new_history() -> None:
    rate = FrameRate()
    rate.update(beat(0, 1000), 0)
    assert rate.update(beat(1, 5000, session=2), 1) == 0.0
    assert rate.update(beat(2, 5020, session=2), 2) == 20.0
    assert rate.update(beat(3, 0, session=2), 3) == 0.0
