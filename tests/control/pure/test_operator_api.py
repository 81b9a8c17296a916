"""Requests to an API server that fails, or stands behind a proxy that does."""

import asyncio
from pathlib import Path

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, RawTestServer

from rollfleet_operator import api
from rollfleet_operator.api import Api
from rollfleet_operator.errors import ApiError


def client_of(server: BaseTestServer) -> Api:
    return Api(lambda: kopf.ConnectionInfo(server=str(server.make_url("/"))))


@pytest.mark.parametrize(
    ("status", "text"), [(429, "Too many requests, please try again later."), (503, "no available server")]
)
async def test_a_refusal_in_plain_text_keeps_its_status_and_its_text(status: int, text: str) -> None:
    async def refuse(_: web.BaseRequest) -> web.Response:
        return web.Response(status=status, text=text)

    async with RawTestServer(refuse) as server, client_of(server) as client:
        with pytest.raises(ApiError) as refused:
            await client.get("Pod", "lab", "a")
    assert (refused.value.status, str(refused.value)) == (status, text)


async def test_an_answer_that_does_not_come_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_: web.BaseRequest) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(api, "TIMEOUT_S", 0.1)
    async with RawTestServer(hang) as server, client_of(server) as client:
        with pytest.raises(ApiError, match=r"the API server did not answer: .*[Tt]imeout"):
            await client.get("Pod", "lab", "a")


async def test_credentials_that_can_no_longer_be_read_are_an_error_of_the_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a")
    monkeypatch.setattr(api, "LOGIN_S", -1.0)
    async with Api(lambda: kopf.ConnectionInfo(server="http://127.0.0.1:1", token=token.read_text())) as client:
        token.unlink()
        with pytest.raises(ApiError, match=r"the credentials cannot be read: .*No such file"):
            await client.get("Pod", "lab", "a")
