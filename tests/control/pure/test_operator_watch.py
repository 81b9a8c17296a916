"""The operator's watch, here of pods, on an API server that sends what each test lets it send."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import kopf
import pytest
from aiohttp import web
from tests.control.pure.scene import stored_pod as pod

from rollfleet_operator import api, watch
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.watch import Watch

KEY = JobKey("lab", "cartpole")


class Pods:
    """An API server of pods.

    Attributes:
        pages: The pages of its list.
        events: What each watch sends before it ends, in their order; the next one sends nothing, and stays open.
        asked: The versions from which it was watched; `list` for each page that was read.
        broken_page: The page of its list that fails; None: none.
        silent: The number of first watches that send nothing.
    """

    def __init__(self) -> None:
        self.pages: list[list[Manifest]] = [[]]
        self.version = 5
        self.broken_page: int | None = None
        self.events: list[list[tuple[str, Manifest]]] = []
        self.asked: list[str] = []
        self.silent = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.asked.append("list")
            page = int(request.query.get("continue", "0"))
            if page == self.broken_page:
                return web.json_response({"code": 400, "message": "broken"}, status=400)
            more = {"continue": str(page + 1)} if page + 1 < len(self.pages) else {}
            metadata = {"resourceVersion": str(self.version), **more}
            return web.json_response({"metadata": metadata, "items": self.pages[page]})
        self.asked.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        self.silent -= 1
        if not self.events or self.silent >= 0:
            await asyncio.Event().wait()
        text = "".join(json.dumps({"type": kind, "object": each}) + "\n" for kind, each in self.events.pop(0))
        for half in (text[: len(text) // 2], text[len(text) // 2 :]):  # an event may come in pieces
            await response.write(half.encode())
            await asyncio.sleep(0)
        return response

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[tuple[Cache, Watch, "asyncio.Queue[JobKey]"]]:
        """A watch of this server, its cache, and the jobs whose pods changed."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        cache, changed = Cache(), asyncio.Queue[JobKey]()
        try:
            async with Api(lambda: kopf.ConnectionInfo(server=url)) as client:
                yield cache, Watch(client, cache, "Pod", None, lambda _, key: changed.put_nowait(key)), changed
        finally:
            await runner.cleanup()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Pods:
    monkeypatch.setattr(watch, "FIRST_RETRY_S", 0.01)
    return Pods()


def known(cache: Cache) -> dict[str, str]:
    return {each.name: each.node for each in cache.pods(KEY)}


async def followed(server: Pods, until: Callable[[Cache], bool]) -> Cache:
    """Follow until the cache is in a state; return the cache."""
    async with server.watched() as (cache, watch, changed):
        following = asyncio.create_task(watch.follow())
        while not until(cache):
            await changed.get()
        following.cancel()
    return cache


async def test_all_pages_of_the_list_are_kept(server: Pods) -> None:
    server.pages = [[pod(0, 1), pod(1, 2)], [pod(2, 3)]]
    await followed(server, lambda cache: len(known(cache)) == 3)


async def test_a_list_that_fails_in_the_middle_reports_what_it_has_stored(server: Pods) -> None:
    server.pages, server.broken_page = [[pod(0, 1)], []], 1
    await followed(server, lambda cache: known(cache) == {"cartpole-0": "1"})


async def test_changes_are_taken_in_from_the_version_of_the_list(server: Pods) -> None:
    server.pages = [[pod(0, 1), pod(1, 2)]]
    server.events = [[("ADDED", pod(2, 6)), ("MODIFIED", pod(0, 7)), ("DELETED", pod(1, 8))]]
    found = await followed(server, lambda cache: known(cache) == {"cartpole-0": "7", "cartpole-2": "6"})
    assert len(found.pods(KEY)) == 2
    assert server.asked[:2] == ["list", "5"]


async def test_next_watch_continues_where_the_last_one_ended_without_a_list(server: Pods) -> None:
    server.events = [
        [("ADDED", pod(0, 6)), ("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "9"}})],
        [("ADDED", pod(1, 10))],
    ]
    await followed(server, lambda cache: len(cache.pods(KEY)) == 2)
    assert server.asked[:3] == ["list", "5", "9"]


async def test_watch_without_a_sign_of_life_begins_again(server: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "SILENT_S", 0.5)  # a busy machine is silent, too
    server.silent, server.events = 1, [[("ADDED", pod(0, 6))]]
    await followed(server, lambda cache: bool(cache.pods(KEY)))
    assert server.asked[:3] == ["list", "5", "5"]


@pytest.mark.parametrize("code", [403, 410])
async def test_forgotten_or_refused_changes_lead_to_a_new_list_that_finds_deletions(server: Pods, code: int) -> None:
    server.pages = [[pod(0, 1)]]
    server.events = [[("ERROR", {"kind": "Status", "code": code})]]

    def deleted(cache: Cache) -> bool:
        if known(cache):
            server.pages, server.version = [[pod(1, 7)]], 7
        return known(cache) == {"cartpole-1": "7"}

    await followed(server, deleted)
    assert server.asked[:3] == ["list", "5", "list"]


@pytest.mark.parametrize("event", [("ERROR", {"kind": "Status", "code": 500}), ("ADDED", {"metadata": {}})])
async def test_watch_goes_on_after_an_error(server: Pods, event: tuple[str, Manifest]) -> None:
    server.events = [[event], [("ADDED", pod(0, 6))]]
    await followed(server, lambda cache: bool(cache.pods(KEY)))
