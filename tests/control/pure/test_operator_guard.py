"""The answers of the API server about viewers: kept for a limited time, and of a limited number."""

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from rollfleet_operator.errors import ApiError
from rollfleet_operator.ui import guard
from rollfleet_operator.ui.guard import VALID_S, ReviewGuard


class Reviews:
    """An API server that knows each token.

    Attributes:
        asked: The tokens that it was asked about, in order.
        now_s: The time.
        away: Whether it does not answer.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now_s, self.away = 0.0, False
        self.guard = ReviewGuard(self, lambda: self.now_s)  # type: ignore[arg-type]

    async def create(self, review: Any) -> Any:
        self.asked.append(review["spec"]["token"])
        if self.away:
            raise ApiError(500, "InternalError", "away")
        return {"status": {"authenticated": True, "user": {"username": review["spec"]["token"]}}}

    async def admit(self, token: str) -> None:
        await self.guard.admit(make_mocked_request("GET", "/", headers={"Authorization": f"Bearer {token}"}))


async def test_an_answer_holds_for_a_limited_time() -> None:
    reviews = Reviews()
    for now_s in (0.0, VALID_S - 1, VALID_S):
        reviews.now_s = now_s
        await reviews.admit("a")
    assert reviews.asked == ["a", "a"]


async def test_an_error_is_not_kept() -> None:
    reviews = Reviews()
    reviews.away = True
    with pytest.raises(web.HTTPServiceUnavailable, match="Service Unavailable"):
        await reviews.admit("a")
    reviews.away = False
    await reviews.admit("a")
    assert reviews.asked == ["a", "a"]


async def test_the_oldest_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST", 2)
    reviews = Reviews()
    for token in ("a", "b", "c", "b", "a"):
        await reviews.admit(token)
    assert reviews.asked == ["a", "b", "c", "a"]
