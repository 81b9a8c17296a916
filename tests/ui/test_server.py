"""The page over HTTP: what it answers, to whom, and at which pace."""

import asyncio
import gzip
import json
import os
from collections.abc import AsyncIterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.ui.run_files import write_run

from rollfleet_ui.changes import MAX_STREAMS
from rollfleet_ui.run_folder import PAGE
from rollfleet_ui.saved_runs import SavedRuns
from rollfleet_ui.server import MAX_LOG_CHARACTERS, MAX_TAIL, page, served

Answer = tuple[int, str, Mapping[str, str]]
LAB, OTHER = "lab/cartpole@1", "other/secret@1"


@dataclass
class Reader:
    """A viewer of some namespaces."""

    namespaces: set[str]
    token: str | None = None

    async def readable(self, namespaces: Set[str]) -> Set[str]:
        return namespaces & self.namespaces


READERS = {"lab": Reader({"lab"}), "all": Reader({"lab", "other"})}


class Readers:
    """A guard of two readers: the name of each is its token."""

    async def admit(self, request: web.Request) -> Reader:
        reader = READERS.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if reader is None:
            raise web.HTTPUnauthorized(text="who are\nyou?")
        return reader


class Browser:
    """A client of one page."""

    def __init__(self, runs: SavedRuns, folder: Path, port: int, session: aiohttp.ClientSession) -> None:
        self.runs, self.folder, self.session = runs, folder, session
        self.url = f"http://127.0.0.1:{port}"
        self._changes = 0

    async def get(self, path: str, reader: str = "lab", **headers: str) -> Answer:
        authorization = {"Authorization": f"Bearer {reader}"}
        async with self.session.get(self.url + path, headers=authorization | headers) as answer:
            return answer.status, await answer.text(), answer.headers.copy()

    def stream(self, reader: str = "lab", query: str = "") -> "aiohttp.client._RequestContextManager":
        headers = {"Authorization": f"Bearer {reader}"}
        return self.session.get(f"{self.url}/api/v1/changes{query}", headers=headers)

    def change(self, name: str, **said: object) -> None:
        """Write a run, and report it."""
        folder = write_run(self.folder, name, **said)  # type: ignore[arg-type]
        self._changes += 1
        os.utime(folder.path / PAGE, (self._changes, self._changes))  # the clock of files is too coarse
        self.runs.look()


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    """A page of a run in the namespace `lab` and of one in `other`."""
    folder = write_run(tmp_path, "cartpole", namespace="lab", frames=64)
    folder.write_log(1, "x" * (2 * MAX_LOG_CHARACTERS))
    folder.write_log(
        0, "".join(f"line {number}\n" for number in range(20_000)) + "\x1b[31mred\x1b[0m\x07 <img onerror=alert(1)>"
    )
    write_run(tmp_path, "secret", namespace="other")
    runs = SavedRuns(tmp_path)
    as_many_as_asked = aiohttp.TCPConnector(limit=0)
    async with (
        served(page(runs, Readers()), port=0) as port,
        aiohttp.ClientSession(connector=as_many_as_asked) as session,
    ):
        yield Browser(runs, tmp_path, port, session)


async def events(answer: aiohttp.ClientResponse, count: int) -> list[tuple[str, Any]]:
    """Read some events of a stream, without comments."""
    found: list[tuple[str, Any]] = []
    kind = ""
    async with asyncio.timeout(20):
        async for line in answer.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                found.append((kind, json.loads(value)))
                if len(found) == count:
                    break
    return found


def keys_and_frames(found: list[tuple[str, Any]]) -> list[tuple[str, int]]:
    return [(row["key"], row["frames"]) for _, rows in found for row in rows]


async def test_a_job_has_its_own_addresses(browser: Browser) -> None:
    status, text, _ = await browser.get("/api/v1/jobs")
    assert status == 200
    assert [row["key"] for row in json.loads(text)] == [LAB]
    parts = ("", "/workers", "/history", "/timeline")
    answers = {part: json.loads((await browser.get(f"/api/v1/jobs/{LAB}{part}"))[1]) for part in parts}
    assert answers[""]["row"]["frames"] == 64
    assert answers[""]["diagnosis"]["isProblem"] is False
    assert [worker["index"] for worker in answers["/workers"]] == [0, 1, None]
    assert answers["/history"]["series"]["frames"] == [64]
    assert answers["/timeline"][0]["kind"] == "Created"


@pytest.mark.parametrize("path", ["", "/workers", "/history", "/timeline", "/logs?worker=0"])
async def test_a_job_that_may_not_be_read_is_refused_whether_it_exists_or_not(browser: Browser, path: str) -> None:
    for key in (OTHER, "other/none"):
        status, text, _ = await browser.get(f"/api/v1/jobs/{key}{path}")
        assert (status, json.loads(text)) == (403, {"error": "you may not read the jobs of the namespace other"})
    status, _, _ = await browser.get(f"/api/v1/jobs/lab/none{path}")
    assert status == 404
    status, _, _ = await browser.get(f"/api/v1/jobs/{OTHER}", reader="all")
    assert status == 200


@pytest.mark.parametrize(
    "path", ["/", "/static/index.html", "/api/v1/jobs", "/api/v1/changes", "/api/v1/none", "/none"]
)
async def test_without_a_token_nothing_is_answered(browser: Browser, path: str) -> None:
    status, text, _ = await browser.get(path, reader="stranger")
    assert status == 401
    assert "\n" not in text if path.startswith("/api") else True


@pytest.mark.parametrize("path", ["/", "/api/v1/jobs", "/api/v1/none", "/static/none"])
@pytest.mark.parametrize("reader", ["lab", "stranger"])
async def test_every_answer_forbids_scripts_of_elsewhere(browser: Browser, path: str, reader: str) -> None:
    _, _, headers = await browser.get(path, reader=reader)
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Frame-Options"] == "DENY"
    if path.startswith("/api"):
        assert headers["Cache-Control"] == "no-store"
        assert headers["Content-Type"].startswith("application/json")


async def test_files_of_the_page_are_compressed_and_sent_once(browser: Browser) -> None:
    status, text, headers = await browser.get("/")
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert "<html" in text
    assert (await browser.get("/static/index.html"))[1] == text
    status, again, _ = await browser.get("/", **{"If-None-Match": headers["ETag"]})
    assert (status, again) == (304, "")
    _, plain, headers = await browser.get("/", **{"Accept-Encoding": "identity"})
    assert (plain, "Content-Encoding" in headers) == (text, False)


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd", "/static/"]
)
async def test_no_other_file_is_answered(browser: Browser, path: str) -> None:
    assert (await browser.get(f"/static/{path}"))[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_can_be_changed(browser: Browser, method: str) -> None:
    headers = {"Authorization": "Bearer all"}
    async with browser.session.request(method, f"{browser.url}/api/v1/jobs/{LAB}", headers=headers) as answer:
        assert answer.status == 405
        assert "error" in await answer.json()


async def test_a_log_is_text_in_bounds(browser: Browser) -> None:
    _, text, _ = await browser.get(f"/api/v1/jobs/{LAB}/logs?worker=0&tail=2")
    assert json.loads(text)["text"] == "line 19999\nred <img onerror=alert(1)>"
    _, text, _ = await browser.get(f"/api/v1/jobs/{LAB}/logs?worker=0&tail={MAX_TAIL}")
    assert json.loads(text)["text"].count("\n") == MAX_TAIL - 1
    _, text, _ = await browser.get(f"/api/v1/jobs/{LAB}/logs?worker=1&tail={MAX_TAIL}")
    assert json.loads(text)["text"] == "x" * MAX_LOG_CHARACTERS
    status, text, _ = await browser.get(f"/api/v1/jobs/{LAB}/logs?worker=learner&previous=true")
    assert (status, json.loads(text)) == (404, {"error": "this log was not saved"})


@pytest.mark.parametrize(
    "query",
    ["", "worker=-1", "worker=x", "worker=²", "worker=0&tail=0", "worker=0&tail=10001", "worker=0&previous=yes"],
)
async def test_a_wrong_question_about_a_log_is_explained(browser: Browser, query: str) -> None:
    status, text, _ = await browser.get(f"/api/v1/jobs/{LAB}/logs?{query}")
    assert status == 400
    assert json.loads(text)["error"].startswith(("`worker` is", "`tail` is", "`previous` is"))


async def test_changes_are_sent_to_those_who_may_read_them(browser: Browser) -> None:
    async with browser.stream("lab") as lab, browser.stream("all") as everyone:
        ((kind, hello),) = await events(lab, 1)
        assert (kind, hello["readOnly"]) == ("hello", True)
        await events(everyone, 1)
        browser.change("secret", namespace="other", frames=7)
        assert keys_and_frames(await events(everyone, 1)) == [(OTHER, 7)]
        browser.change("cartpole", namespace="lab", frames=128)
        assert keys_and_frames(await events(everyone, 1)) == [(LAB, 128)]
        assert keys_and_frames(await events(lab, 1)) == [(LAB, 128)]


async def test_a_job_that_is_gone_is_reported_to_its_readers(browser: Browser) -> None:
    async with browser.stream("lab") as lab, browser.stream("all") as everyone:
        await events(lab, 1)
        await events(everyone, 1)
        for name in ("secret", "cartpole"):
            (browser.folder / name / "1" / "job.json").unlink()
        browser.runs.look()
        ((_, rows),) = await events(everyone, 1)
        assert sorted(rows, key=str) == [{"key": LAB, "gone": True}, {"key": OTHER, "gone": True}]
        ((_, rows),) = await events(lab, 1)
        assert rows == [{"key": LAB, "gone": True}]
    assert json.loads((await browser.get("/api/v1/jobs"))[1]) == []


async def test_many_changes_are_one_message_with_the_newest_values(browser: Browser) -> None:
    async with browser.stream("all", "?job=lab/cartpole@1") as answer:
        await events(answer, 1)
        for frames in range(50):
            browser.change("cartpole", namespace="lab", frames=frames)
        assert keys_and_frames(await events(answer, 1)) == [(LAB, 49)]


async def test_a_browser_that_reads_nothing_holds_no_other_up(browser: Browser) -> None:
    async with browser.stream("all") as slow, browser.stream("all") as quick:
        await events(slow, 1)
        slow.content._protocol.pause_reading()
        await events(quick, 1)
        for number in range(3):
            browser.change("cartpole", namespace="lab", frames=1000 + number)
            assert keys_and_frames(await events(quick, 1)) == [(LAB, 1000 + number)]


async def test_there_are_not_endless_streams(browser: Browser) -> None:
    streams = [await browser.stream() for _ in range(MAX_STREAMS)]
    async with browser.stream() as refused:
        assert refused.status == 429
        assert "browsers follow changes already" in (await refused.json())["error"]
    for each in streams:
        each.close()


@pytest.mark.parametrize("query", ["?job=cartpole", "?job=/", "?job="])
async def test_a_stream_of_no_job_is_explained(browser: Browser, query: str) -> None:
    async with browser.stream(query=query) as refused:
        assert refused.status == 400
        assert "write `namespace/name`" in (await refused.json())["error"]


async def test_a_stopped_server_ends_its_streams(tmp_path: Path) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer lab"}) as session:
        async with served(page(SavedRuns(tmp_path), Readers()), port=0) as port:
            answer = await session.get(f"http://127.0.0.1:{port}/api/v1/changes")
            await events(answer, 1)
        async with asyncio.timeout(5):
            with suppress(aiohttp.ClientError):
                while await answer.content.readline():
                    pass
            answer.close()


def test_the_whole_page_is_small(repository: Path) -> None:
    files = [path for path in (repository / "sdk/rollfleet_ui/static").rglob("*") if path.is_file()]
    assert files
    assert sum(len(gzip.compress(path.read_bytes())) for path in files if path.suffix != ".md") <= 80 * 1024
