"""Who is admitted to a page of this machine."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from rollfleet_ui.saved_runs import SavedRuns
from rollfleet_ui.server import page, served
from rollfleet_ui.token_guard import TokenGuard

TOKEN = "secret"
BEARER = f"Bearer {TOKEN}"


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    async with served(page(SavedRuns(tmp_path), TokenGuard(TOKEN)), port=0) as port:
        yield port


async def test_the_token_of_the_url_becomes_a_cookie_that_scripts_do_not_see(port: int) -> None:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.get(TokenGuard(TOKEN).url(port), allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (302, "/")
            cookie = answer.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
        async with session.get(f"http://127.0.0.1:{port}/api/v1/jobs") as answer:
            assert (answer.status, await answer.json()) == (200, [])


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/v1/jobs", {}, 401),
        ("/api/v1/jobs?token=wrong", {}, 401),
        ("/api/v1/jobs?token=%FF%C3%A9", {}, 401),
        ("/api/v1/jobs", {"Authorization": "Bearer wrong"}, 401),
        ("/api/v1/jobs", {"Authorization": "Bearer "}, 401),
        ("/api/v1/jobs", {"Cookie": "rollfleet-1=secret"}, 401),
        ("/api/v1/jobs", {"Authorization": BEARER}, 200),
        ("/api/v1/jobs", {"Authorization": BEARER, "Host": "rebound.example"}, 403),
        (f"/?token={TOKEN}", {"Host": "rebound.example"}, 403),
        (f"/?token={TOKEN}", {"Host": "127.0.0.1.rebound.example"}, 403),
        (f"/?token={TOKEN}", {"Host": "127.0.0.1:port"}, 403),
        (f"/?token={TOKEN}", {"Host": "["}, 403),
        ("/api/v1/jobs", {"Authorization": BEARER, "Host": "localhost:8080"}, 200),
        ("/api/v1/jobs", {"Authorization": BEARER, "Host": "[::1]:8080"}, 200),
        ("/api/v1/jobs", {"Authorization": BEARER, "Origin": "http://evil.example"}, 403),
        ("/api/v1/jobs", {"Authorization": BEARER, "Origin": "null"}, 403),
        ("/api/v1/jobs", {"Authorization": BEARER, "Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        ("/api/v1/jobs", {"Authorization": BEARER, "Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
    ],
)
async def test_a_request_needs_the_token_and_comes_from_this_machine(
    port: int, path: str, headers: dict[str, str], status: int
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers=headers, allow_redirects=False) as answer,
    ):
        assert answer.status == status


async def test_each_guard_has_its_own_token() -> None:
    assert len(TokenGuard().url(1)) > 50
    assert TokenGuard().url(1) != TokenGuard().url(1)
