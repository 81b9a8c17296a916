"""Periodic reads of stored state: they survive errors of NATS, and count how long the streams are missing."""

import asyncio
from collections.abc import Callable

import pytest
from nats.errors import NoRespondersError

from rollfleet.errors import JobEnded
from rollfleet.nats.polling import poll


def reads(*outcomes: BaseException | None) -> Callable[[], "asyncio.Future[None]"]:
    """Return a read with these outcomes, one a call; then the job ends."""
    remaining = iter(outcomes)

    def read() -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcome = next(remaining, JobEnded("the end of the test"))
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
        return future

    return read


def missing_after(*outcomes: BaseException | None) -> list[float]:
    missing: list[float] = []
    with pytest.raises(JobEnded, match="the end of the test"):
        asyncio.run(poll(reads(*outcomes), every_s=0.01, on_missing=missing.append))
    return missing


def test_seconds_without_streams_are_counted_until_a_read_succeeds() -> None:
    gone = NoRespondersError
    assert missing_after(gone(), gone(), None, gone()) == pytest.approx([0.01, 0.02, 0.01])


def test_other_errors_of_nats_are_no_sign_of_missing_streams() -> None:
    assert missing_after(TimeoutError(), OSError(), None) == []


def test_an_error_of_the_caller_ends_polling() -> None:
    def end(missing_s: float) -> None:
        raise JobEnded(f"gone for {missing_s} s")

    with pytest.raises(JobEnded, match=r"gone for 0\.01 s"):
        asyncio.run(poll(reads(NoRespondersError()), every_s=0.01, on_missing=end))
