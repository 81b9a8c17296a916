"""The work queue: order, retries and delays."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from rollfleet_operator import work_queue
from rollfleet_operator.work_queue import WorkQueue


@pytest.fixture
async def queue() -> AsyncIterator[WorkQueue[str]]:
    queue: WorkQueue[str] = WorkQueue()
    yield queue
    queue.close()


async def test_key_added_twice_is_taken_once_and_in_order(queue: WorkQueue[str]) -> None:
    for key in ("a", "b", "a"):
        queue.add(key)
    assert [await queue.take(), await queue.take(), len(queue)] == ["a", "b", 0]


async def test_edited_key_passes_by_every_second_of_those_that_wait(queue: WorkQueue[str]) -> None:
    for key in ("a", "b", "c", "d"):
        queue.add(key)
    for key in ("x", "c"):
        queue.add(key, edited=True)
    order = []
    while len(queue):
        order.append(await queue.take())
        queue.done(order[-1])
    assert order == ["x", "a", "c", "b", "d"]


@pytest.mark.parametrize(("edited", "order"), [(True, ["x", "a", "b"]), (False, ["a", "b", "x"])])
async def test_change_during_a_reconciliation_causes_another_and_an_edit_passes_by(
    queue: WorkQueue[str], edited: bool, order: list[str]
) -> None:
    for key in ("x", "a", "b"):
        queue.add(key)
    await queue.take()
    queue.add("x", edited=edited)
    queue.add("x")
    assert len(queue) == 2
    queue.done("x")
    assert [await queue.take() for _ in order] == order


async def test_waiting_task_is_woken(queue: WorkQueue[str]) -> None:
    waiting = [asyncio.create_task(queue.take()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add("a")
    queue.add("b")
    assert sorted(await asyncio.gather(*waiting)) == ["a", "b"]


async def test_of_several_delays_the_shortest_counts(queue: WorkQueue[str]) -> None:
    queue.add_later("a", 3600)
    queue.add_later("a", 0.01)
    queue.add_later("a", 3600)
    assert await queue.take() == "a"


async def test_retries_of_a_failure_come_later_each_time(queue: WorkQueue[str]) -> None:
    delays = [queue.failed("a") for _ in range(12)]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(delays) == work_queue.LAST_RETRY_S
    queue.done("a")
    assert queue.failed("a") == 0.5


async def test_change_does_not_wait_for_a_failures_delay(
    queue: WorkQueue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_queue, "FIRST_RETRY_S", 3600.0)
    queue.add("a")
    queue.failed(await queue.take())
    queue.add("a")
    assert await queue.take() == "a"
