"""The answers of the API server about viewers: asked once, for a limited time, of a limited number."""

import asyncio

import pytest

from rollfleet_operator.ui import guard
from rollfleet_operator.ui.guard import VALID_S, Answers


class Asked:
    """Questions that were asked, and their answers.

    Attributes:
        questions: The questions, in order.
        now_s: The time.
    """

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.now_s = 0.0
        self.answers = Answers[int](lambda: self.now_s)

    async def get(self, question: str) -> int:
        async def ask() -> int:
            self.questions.append(question)
            await asyncio.sleep(0)
            if question == "wrong":
                raise OSError("away")
            return len(self.questions)

        return await self.answers.get(question, ask)


async def test_a_question_is_asked_once_for_all_who_wait() -> None:
    asked = Asked()
    assert await asyncio.gather(*(asked.get("a") for _ in range(5))) == [1] * 5
    assert await asked.get("a") == 1
    assert asked.questions == ["a"]


async def test_an_answer_holds_for_a_limited_time() -> None:
    asked = Asked()
    await asked.get("a")
    asked.now_s = VALID_S - 1
    await asked.get("a")
    assert asked.questions == ["a"]
    asked.now_s = VALID_S
    assert await asked.get("a") == 2


async def test_an_error_is_not_kept() -> None:
    asked = Asked()
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            await asked.get("wrong")
    assert asked.questions == ["wrong", "wrong"]


async def test_a_viewer_who_leaves_takes_no_answer_from_others() -> None:
    asked = Asked()
    first, second = (asyncio.create_task(asked.get("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1


async def test_the_oldest_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST", 2)
    asked = Asked()
    for question in ("a", "b", "c", "b", "a"):
        await asked.get(question)
    assert asked.questions == ["a", "b", "c", "a"]
