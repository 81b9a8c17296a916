"""Workers that look for missed messages: however many, they cost their server no more than a few."""

import pytest

from rollfleet.nats.polling import MOST_POLLS_PER_S, POLL_EVERY_S, interval_s


@pytest.mark.parametrize("workers", [1, 2, 200, 10_000])
def test_all_workers_together_poll_a_bounded_number_of_times_a_second(workers: int) -> None:
    assert workers / interval_s(workers) <= MOST_POLLS_PER_S
    assert interval_s(workers) >= POLL_EVERY_S


def test_few_workers_poll_every_two_seconds() -> None:
    assert interval_s(2) == POLL_EVERY_S
