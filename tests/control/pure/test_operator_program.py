"""What leads to a look, and what a look that left something undone leads to. The API server is one that only lists."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import kopf
import pytest
from aiohttp import web
from tests.api.job_data import job_data
from tests.control.pure.nats_in_memory import NatsInMemory
from tests.control.pure.scene import SHARED

from rollfleet_api.job import KIND, CollectorJob
from rollfleet_api.kinds import KINDS
from rollfleet_operator.api import Api
from rollfleet_operator.cache import WATCHED, Cache
from rollfleet_operator.errors import OperatorError
from rollfleet_operator.leadership import Leadership
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.program import Operator
from rollfleet_operator.reconcile import Reconciler, ReconcileResult
from rollfleet_operator.reconciling import Reconciling
from rollfleet_operator.settings import Settings
from rollfleet_operator.ui.logs import PodLogs
from rollfleet_operator.ui.shown_jobs import ShownJobs
from rollfleet_operator.watch import Watch

KEY = JobKey("lab", "cartpole")
LEADER = Settings(port=0, workers=0, lease="lab/rollfleet", pod="first")


def stored(version: int, **spec: Any) -> Manifest:
    metadata = {"namespace": "lab", "uid": "1", "resourceVersion": str(version), "generation": version}
    return job_data(metadata | {"creationTimestamp": "2026-11-25T12:00:00Z"}, **spec)


class Lists:
    """An API server with one job, which stores the statuses that it gets.

    Attributes:
        has_job: Whether it has its job.
        asked: What was listed or watched.
        statuses: The stored statuses.
        url: Where it listens.
    """

    url: str

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.has_job = True
        self.statuses: list[Manifest] = []

    async def list(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path.rpartition("/")[2])
        jobs = self.asked[-1] == KINDS[KIND].plural
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        found = [stored(5)] if jobs and self.has_job else []
        return web.json_response({"metadata": {"resourceVersion": "5"}, "items": found})

    async def apply(self, request: web.Request) -> web.Response:
        applied = await request.json()
        if "status" not in applied:  # the renewal of a Lease
            return web.json_response(applied)
        self.statuses.append(applied["status"])
        version = int(applied["metadata"]["resourceVersion"]) + 1
        return web.json_response({**stored(version), "status": self.statuses[-1]})

    def connect(self) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=self.url)


@pytest.fixture
async def lists() -> AsyncIterator[Lists]:
    lists, app = Lists(), web.Application()
    app.router.add_get("/{path:.*}", lists.list)
    app.router.add_patch("/{path:.*}", lists.apply)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    lists.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield lists
    await runner.cleanup()


@pytest.fixture
async def api(lists: Lists) -> AsyncIterator[Api]:
    async with Api(lists.connect) as api:
        yield api


@pytest.fixture
async def operator(lists: Lists) -> AsyncIterator[Operator]:
    """An operator without tasks: only the test takes keys from its queue."""
    operator = Operator(Settings(port=0, workers=0), lists.connect, lambda _: NatsInMemory(), SHARED)
    await operator.start()
    yield operator
    await operator.stop()


async def take_job(operator: Operator) -> JobKey:
    key = await operator.queue.take()
    operator.queue.done(key)
    return key


async def test_no_job_is_reconciled_before_all_kinds_are_listed(lists: Lists, operator: Operator) -> None:
    assert await take_job(operator) == KEY
    assert {KINDS[kind].plural for kind in WATCHED} <= {*lists.asked}


async def test_leader_that_cannot_renew_its_lease_looks_at_no_job(api: Api, operator: Operator) -> None:
    async def look(key: JobKey) -> ReconcileResult:
        looked.append(key)
        return ReconcileResult()

    looked = list[JobKey]()
    leadership = Leadership(api, "lab", "rollfleet", "first")  # it has renewed nothing yet
    assert await take_job(operator) == KEY
    await Reconciling(look, operator.queue, operator.metrics, leadership.verify).reconcile(KEY)
    assert not looked, "another operator may lead, and a look writes to NATS"
    await Reconciling(look, operator.queue, operator.metrics).reconcile(KEY)
    assert looked == [KEY]


async def test_operator_with_a_task_that_ended_is_not_alive(operator: Operator) -> None:
    assert operator.alive()
    task = next(task for task in asyncio.all_tasks() if "Watch.follow" in repr(task))
    task.cancel()
    await asyncio.wait([task])
    assert not operator.alive()


async def test_leader_whose_renewals_have_ended_is_not_alive(lists: Lists) -> None:
    operator = Operator(LEADER, lists.connect, lambda _: NatsInMemory(), SHARED)
    await operator.start()
    assert operator.alive()
    renewal = next(task for task in asyncio.all_tasks() if "Leadership" in repr(task))
    renewal.cancel()
    await asyncio.wait([renewal])
    assert not operator.alive()
    await operator.stop()


async def test_leader_that_waits_for_its_key_is_not_ready(lists: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    async def absent(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    asked = asyncio.Event()
    monkeypatch.setattr("rollfleet_operator.program.installation_key", absent)
    operator = Operator(LEADER, lists.connect, lambda _: NatsInMemory())
    starting = asyncio.create_task(operator.start())
    await asked.wait()
    assert not operator.ready()
    starting.cancel()
    await asyncio.wait([starting])
    await operator.stop()


async def test_reconciliation_that_hangs_is_given_up_and_tried_again(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: JobKey) -> ReconcileResult:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("rollfleet_operator.reconciling.STUCK_S", 0.01)
    key = await operator.queue.take()
    await Reconciling(hang, operator.queue, operator.metrics).reconcile(key)
    assert await take_job(operator) == KEY


async def test_others_work_between_two_looks_that_wait_for_nothing(operator: Operator) -> None:
    async def look(key: JobKey) -> ReconcileResult:
        seen.append(key.name)
        if key.name == "b":
            looked.set()
        return ReconcileResult()

    async def work() -> None:
        while True:
            seen.append("others")
            await asyncio.sleep(0)

    assert await take_job(operator) == KEY
    seen, looked = list[str](), asyncio.Event()
    for name in ("a", "b"):
        operator.queue.add(JobKey("lab", name))
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        working = [
            tasks.create_task(Reconciling(look, operator.queue, operator.metrics).run()),
            tasks.create_task(work()),
        ]
        await looked.wait()
        for task in working:
            task.cancel()
    assert "others" in seen[seen.index("a") : seen.index("b")]


async def test_lasting_problem_of_a_job_is_logged_once_with_the_time_of_the_next_attempt(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: JobKey) -> ReconcileResult:
        return ReconcileResult(0.2, OperatorError(problems.pop(0)))

    problems = ["no space", "no space", "no space", "no right"]
    fails = Reconciling(fail, operator.queue, operator.metrics)
    while problems:
        await fails.reconcile(await operator.queue.take())
    assert caplog.messages == [f"lab/cartpole: {problem}; retry in 0.2 s" for problem in ("no space", "no right")]


async def test_operator_stops_although_a_task_loses_a_cancellation(
    lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_one(_: Watch) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    monkeypatch.setattr(Watch, "follow", lose_one)
    operator = Operator(Settings(port=0, workers=0), lists.connect, lambda _: NatsInMemory(), SHARED)
    await operator.start()
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await operator.stop()


async def test_dropped_messages_are_among_the_metrics(operator: Operator) -> None:
    assert b"rollfleet_messages_dropped_total 0.0" in operator.metrics.exposition()


async def test_invalid_job_is_reported_once_the_status_interval_is_over(api: Api, lists: Lists) -> None:
    now_s, cache, settings = [1_800_000_000.0], Cache(), Settings(status_interval_s=5.0)
    reconciler = Reconciler(api, cache, NatsInMemory(), SHARED, settings, lambda: now_s[0])
    cache.put(stored(6, workers=-1))
    assert await reconciler.reconcile(KEY) == ReconcileResult()
    now_s[0] += 1
    cache.put(stored(8, workers="many"))
    next_s = (await reconciler.reconcile(KEY)).next_s
    assert next_s == 4.0
    now_s[0] += next_s
    assert await reconciler.reconcile(KEY) == ReconcileResult()
    assert [status["observedGeneration"] for status in lists.statuses] == [6, 8]


async def test_a_clock_that_was_set_back_holds_no_status_back(api: Api, lists: Lists) -> None:
    now_s, cache, settings = [1_800_000_000.0], Cache(), Settings(status_interval_s=5.0)
    reconciler = Reconciler(api, cache, NatsInMemory(), SHARED, settings, lambda: now_s[0])
    for version in (6, 8):
        cache.put(stored(version, workers=-1))
        assert await reconciler.reconcile(KEY) == ReconcileResult()
        now_s[0] -= 3600
    assert [status["observedGeneration"] for status in lists.statuses] == [6, 8]


async def test_defect_of_the_operator_is_a_condition_and_on_the_page(api: Api, lists: Lists) -> None:
    async def defect(_: CollectorJob) -> None:
        raise ZeroDivisionError

    cache, nats = Cache(), NatsInMemory()
    page, nats.on_publish = ShownJobs(cache, PodLogs(cache, api)), defect
    cache.put(stored(6))
    result = await Reconciler(api, cache, nats, SHARED, Settings(), page=page).reconcile(KEY)
    assert "ZeroDivisionError" in str(result.problem)
    assert page.jobs()["/".join(KEY)].row.diagnosis.reason == "OperatorError"
    (degraded,) = [each for each in lists.statuses[-1]["conditions"] if each["type"] == "Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "OperatorError")
    assert "ZeroDivisionError" in degraded["message"]
