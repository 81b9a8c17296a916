"""Calls of methods on workers over NATS: a request on `calls.<worker>`, its reply on `answers.<worker>`.

A request is sent again each second until its answer has come: its worker may start, or the connection may be cut. It is
for one process: a call in which a worker dies is not sent to its successor, which might die as well.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace

from rollfleet.errors import MessageTooLarge
from rollfleet.nats.link import Link
from rollfleet_api.messages import Answer, Call, pack

SEND_AGAIN_S = 1.0


class CallSender:
    """The learner's side.

    Args:
        link: The learner's connection.
        process_of: Returns the random number of a worker's process; 0: it has not joined.
    """

    def __init__(self, link: Link, process_of: Callable[[int], int]) -> None:
        self._link, self._process_of = link, process_of
        self._waiting: dict[int, Future[Answer]] = {}  # by the number of the call

    async def subscribe(self) -> None:
        """Receive answers from now on."""
        await self._link.listen(self._link.subjects.answers, Answer, self._hear)

    def call(self, worker: int, call: Call) -> "Future[Answer]":
        """See `Transport`.

        Raises:
            MessageTooLarge: NATS takes no message of this size.
        """
        if (nbytes := len(pack(call))) > (limit := self._link.client.max_payload):
            raise MessageTooLarge(nbytes, limit, "a call, with its arguments as JSON,")
        answered = self._waiting[call.number] = Future[Answer]()
        answered.add_done_callback(lambda _: self._waiting.pop(call.number, None))
        self._link.begin(self._send(worker, call, answered))
        return answered

    async def _send(self, worker: int, call: Call, answered: "Future[Answer]") -> None:
        while not answered.done():
            process = self._process_of(worker)
            if call.process and process != call.process:
                ended = f"worker {worker} was started again before it answered; call it again, if that did not end it"
                self._hear(Answer(number=call.number, error=ended))
                return
            call = replace(call, process=process)
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
        process: Random number of this process.
        on_call: Called on the link's thread when a call has come.
    """

    def __init__(self, link: Link, worker: int, process: int, on_call: Callable[[], None]) -> None:
        self._link, self._worker, self._process, self._on_call = link, worker, process, on_call
        self._answer: Answer | None = None  # the last one
        self._call: Call | None = None  # the last one: it may come again while it is answered

    @property
    def call(self) -> Call | None:
        """See `WorkerTransport`."""
        call, answer = self._call, self._answer
        return None if call is None or (answer and answer.number == call.number) else call

    async def subscribe(self) -> None:
        """Receive calls from now on."""
        await self._link.listen(self._link.subjects.call(self._worker), Call, self._hear)

    def answer(self, answer: Answer) -> None:
        """See `WorkerTransport`."""
        if (nbytes := len(pack(answer))) > (limit := self._link.client.max_payload):
            answer = Answer(
                number=answer.number, error=f"the result has {nbytes:,} bytes; NATS takes {limit:,} at most"
            )
        self._answer = answer
        self._send(answer)

    def _hear(self, call: Call) -> None:
        if call.process not in (0, self._process):
            return
        if self._answer and self._answer.number == call.number:
            self._send(self._answer)  # it was lost, or slow
        else:
            self._call = call
            self._on_call()

    def _send(self, answer: Answer) -> None:
        self._link.begin(self._link.publish(self._link.subjects.answer(self._worker), pack(answer)))
