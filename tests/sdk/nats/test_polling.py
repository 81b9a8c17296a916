"""Workers that look for missed messages: hundreds cost their server no more than a few, and none waits for long."""

import pytest

from rollfleet.nats.polling import LONGEST_POLL_S, MOST_POLLS_PER_S, POLL_EVERY_S, interval_s


@pytest.mark.parametrize("workers", [1, 2, 100, 200])
def test_all_workers_together_poll_a_bounded_number_of_times_a_second(workers: int) -> None:
    assert workers / interval_s(workers) <= MOST_POLLS_PER_S


@pytest.mark.parametrize(("workers", "interval"), [(2, POLL_EVERY_S), (10_000, LONGEST_POLL_S)])
def test_a_worker_polls_within_two_to_ten_seconds(workers: int, interval: float) -> None:
    assert interval_s(workers) == interval
