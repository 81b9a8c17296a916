"""The page over HTTP: what it answers, and to whom."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from tests.ui.run_files import write_run

from rollfleet_ui import server
from rollfleet_ui.saved_runs import SavedRuns, write_log
from rollfleet_ui.server import MAX_CONNECTIONS, MAX_LOG_CHARACTERS, MAX_TAIL, page, served

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
    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self.session, self.port = session, port
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, reader: str = "lab", **headers: str) -> Answer:
        authorization = {"Authorization": f"Bearer {reader}"}
        async with self.session.get(self.url + path, headers=authorization | headers) as answer:
            return answer.status, await answer.text(), answer.headers.copy()


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    """A page of a run in the namespace `lab` and of one in `other`."""
    folder = write_run(tmp_path, "cartpole", namespace="lab", frames=64)
    write_log(folder, "worker 1", "x" * (2 * MAX_LOG_CHARACTERS))
    lines = "".join(f"line {number}\n" for number in range(20_000))
    write_log(folder, "worker 0", lines + "\x1b[31mred\x1b[0m\x07 <img onerror=alert(1)>")
    write_run(tmp_path, "secret", namespace="other")
    async with served(page(SavedRuns(tmp_path), Readers()), port=0) as port, aiohttp.ClientSession() as session:
        yield Browser(port, session)


async def test_a_job_has_its_own_addresses(browser: Browser) -> None:
    status, text, _ = await browser.get("/api/v1/jobs")
    assert status == 200
    assert [row["key"] for row in json.loads(text)] == [LAB]
    parts = ("", "/workers", "/history", "/timeline")
    answers = {part: json.loads((await browser.get(f"/api/v1/jobs/{LAB}{part}"))[1]) for part in parts}
    assert answers[""]["row"]["frames"] == 64
    assert answers[""]["row"]["diagnosis"]["isProblem"] is False
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


@pytest.mark.parametrize("path", ["/", "/static/index.html", "/api/v1/jobs", "/api/v1/none", "/none"])
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


async def test_files_of_the_page_are_sent_once(browser: Browser) -> None:
    status, text, headers = await browser.get("/")
    assert (status, headers["Cache-Control"]) == (200, "no-cache")
    assert "<html" in text
    assert (await browser.get("/static/index.html"))[1] == text
    status, again, _ = await browser.get("/", **{"If-None-Match": headers["ETag"]})
    assert (status, again) == (304, "")


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd", "/static/"]
)
async def test_no_other_file_is_answered(browser: Browser, path: str) -> None:
    assert (await browser.get(f"/static/{path}"))[0] in (403, 404)


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
    [
        "",
        "worker=-1",
        "worker=x",
        "worker=²",
        "worker=evaluation+worker+../0",
        "worker=0&tail=0",
        "worker=0&tail=10001",
        "worker=0&previous=yes",
    ],
)
async def test_a_wrong_question_about_a_log_is_explained(browser: Browser, query: str) -> None:
    status, text, _ = await browser.get(f"/api/v1/jobs/{LAB}/logs?{query}")
    assert status == 400
    assert json.loads(text)["error"].startswith(("`worker` is", "`tail` is", "`previous` is"))


async def test_connections_that_ask_nothing_are_closed(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_S", 0.2)
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", browser.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: ")  # and nothing more
        assert await reader.read() == b""
    writer.close()


async def test_connections_are_bounded_in_number(browser: Browser) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", browser.port) for _ in range(MAX_CONNECTIONS + 1)]
    async with asyncio.timeout(10):
        assert await idle[0][0].read() == b"", "one too many"
    assert (await browser.get("/"))[0] == 200
    for _, writer in idle:
        writer.close()
