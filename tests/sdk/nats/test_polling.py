"""Periodic reads of stored state survive errors of NATS."""

import asyncio
from collections.abc import Callable

import pytest
from nats.errors import NoRespondersError

from rollfleet.errors import JobEnded
from rollfleet.nats import polling
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


async def test_errors_of_nats_end_no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "POLL_EVERY_S", 0.01)
    with pytest.raises(JobEnded, match="the end of the test"):
        await poll(reads(NoRespondersError(), TimeoutError(), None, OSError()))
