"""Calls of methods on workers over NATS: a request on `calls.<worker>`, its reply on `answers.<worker>`.

A request is sent again each second until its answer has come: its worker may start, or the connection may be cut.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from rollfleet.nats.link import Link
from rollfleet_api.messages import Answer, Call, pack

SEND_AGAIN_S = 1.0


class CallSender:
    """The learner's side."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: dict[int, Future[Answer]] = {}  # by the number of the call

    async def subscribe(self) -> None:
        """Receive answers from now on."""
        await self._link.listen(self._link.subjects.answers, Answer, self._hear)

    def call(self, worker: int, call: Call) -> "Future[Answer]":
        """See `Transport`."""
        answered = self._waiting[call.number] = Future[Answer]()
        answered.add_done_callback(lambda _: self._waiting.pop(call.number, None))
        self._link.begin(self._send(worker, call, answered))
        return answered

    async def _send(self, worker: int, call: Call, answered: "Future[Answer]") -> None:
        while not answered.done():
            await self._link.publish(self._link.subjects.call(worker), pack(call))
            await asyncio.sleep(SEND_AGAIN_S)

    def _hear(self, answer: Answer) -> None:
        if answered := self._waiting.get(answer.number):
            with suppress(InvalidStateError):  # the learner has given up meanwhile
                answered.set_result(answer)


class CallReceiver:
    """A worker's side.

    Args:
        link: The worker's connection.
        on_call: Called on the link's thread when a call has come.

    Attributes:
        call: See `WorkerTransport`.
    """

    def __init__(self, link: Link, worker: int, on_call: Callable[[], None]) -> None:
        self._link, self._worker, self._on_call = link, worker, on_call
        self._answer: Answer | None = None  # the last one
        self.call: Call | None = None

    async def subscribe(self) -> None:
        """Receive calls from now on."""
        await self._link.listen(self._link.subjects.call(self._worker), Call, self._hear)

    def answer(self, answer: Answer) -> None:
        """See `WorkerTransport`."""
        self._answer = answer
        if self.call and self.call.number == answer.number:
            self.call = None
        self._send(answer)

    def _hear(self, call: Call) -> None:
        if self._answer and self._answer.number == call.number:
            self._send(self._answer)  # it was lost, or slow
        else:
            self.call = call
            self._on_call()

    def _send(self, answer: Answer) -> None:
        self._link.begin(self._link.publish(self._link.subjects.answer(self._worker), pack(answer)))
