"""Who is looked at, and when."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollfleet_operator import work_queue
from rollfleet_operator.work_queue import WorkQueue

Scenario = Callable[[WorkQueue[str]], Awaitable[None]]


def play(scenario: Scenario) -> None:
    async def run() -> None:
        queue: WorkQueue[str] = WorkQueue()
        await asyncio.wait_for(scenario(queue), 5)
        queue.close()

    asyncio.run(run())


def test_what_is_asked_for_twice_is_looked_at_once_and_in_turn() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        for key in ("a", "b", "a"):
            queue.add(key)
        assert [await queue.take(), await queue.take(), len(queue)] == ["a", "b", 0]

    play(scenario)


def test_what_changes_during_a_look_is_looked_at_again_afterwards() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await queue.take()
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert await queue.take() == "a"

    play(scenario)


def test_who_waits_is_woken() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        waiting = [asyncio.create_task(queue.take()) for _ in range(2)]
        await asyncio.sleep(0)
        queue.add("a")
        queue.add("b")
        assert sorted(await asyncio.gather(*waiting)) == ["a", "b"]

    play(scenario)


def test_of_several_wishes_the_soonest_counts() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add_later("a", 3600)
        queue.add_later("a", 0.01)
        queue.add_later("a", 3600)
        assert await queue.take() == "a"

    play(scenario)


def test_failure_is_tried_again_each_time_later() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        delays = [queue.failed("a") for _ in range(12)]
        assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
        assert max(delays) == work_queue.LAST_RETRY_S
        queue.done("a")
        assert queue.failed("a") == 0.5

    play(scenario)


def test_change_does_not_wait_for_a_failures_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "FIRST_RETRY_S", 3600.0)

    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add("a")
        queue.failed(await queue.take())
        queue.add("a")
        assert await queue.take() == "a"

    play(scenario)
