"""The answers of the API server about viewers: kept for a limited time, and of a limited number."""

from collections.abc import AsyncIterator

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from rollfleet_operator.api import Api
from rollfleet_operator.ui import guard
from rollfleet_operator.ui.guard import VALID_S, ReviewGuard


class Reviews:
    """An API server that knows each token.

    Attributes:
        asked: The tokens that it was asked with, in order.
        now_s: The time.
        refusal: The code with which it refuses to answer; 0: it answers.
        guard: What asks it.
    """

    guard: ReviewGuard

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now_s, self.refusal = 0.0, 0

    async def review(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers["Authorization"].removeprefix("Bearer "))
        if self.refusal:
            return web.json_response({"reason": "Refused", "message": "not now"}, status=self.refusal)
        return web.json_response({"status": {"allowed": True}})

    async def admit(self, token: str) -> None:
        await self.guard.admit(make_mocked_request("GET", "/", headers={"Authorization": f"Bearer {token}"}))


@pytest.fixture
async def reviews() -> AsyncIterator[Reviews]:
    reviews, app = Reviews(), web.Application()
    app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", reviews.review)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = kopf.ConnectionInfo(server=f"http://127.0.0.1:{runner.addresses[0][1]}", token="of the operator")
    async with Api(lambda: server) as api:
        reviews.guard = ReviewGuard(api, lambda: reviews.now_s)
        yield reviews
    await runner.cleanup()


async def test_an_answer_holds_for_a_limited_time(reviews: Reviews) -> None:
    for now_s in (0.0, VALID_S - 1, VALID_S):
        reviews.now_s = now_s
        await reviews.admit("a")
    assert reviews.asked == ["a", "a"]


@pytest.mark.parametrize("refusal", [403, 500])
async def test_an_error_is_not_kept(reviews: Reviews, refusal: int) -> None:
    reviews.refusal = refusal
    with pytest.raises(web.HTTPServiceUnavailable) as caught:
        await reviews.admit("a")
    assert caught.value.text == "your rights could not be checked: not now"
    reviews.refusal = 0
    await reviews.admit("a")
    assert reviews.asked == ["a", "a"]


async def test_the_oldest_answers_are_forgotten(reviews: Reviews, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST", 2)
    for token in ("a", "b", "c", "b", "a"):
        await reviews.admit(token)
    assert reviews.asked == ["a", "b", "c", "a"]
