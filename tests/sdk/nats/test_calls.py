"""Calls over NATS: no message of theirs must arrive."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.job_server import Server
from tests.waiting import wait_until

from rollfleet.errors import MessageTooLarge
from rollfleet.nats.calls import CallReceiver, CallSender
from rollfleet_api.messages import Answer, Call
from rollfleet_api.permissions import Role

CALL = Call(number=7, method="env.level", arguments="[[],{}]")


PROCESS = 5


def sender(server: Server, process_of: Callable[[int], int] = lambda _: 0) -> CallSender:
    link = server.link(Role.LEARNER)
    made = CallSender(link, process_of)
    link.call(made.subscribe())
    return made


def receiver(server: Server) -> CallReceiver:
    link = server.link(Role.WORKER)
    made = CallReceiver(link, 0, PROCESS, lambda: None)
    link.call(made.subscribe())
    return made


def test_a_call_waits_for_a_worker_that_starts_later(server: Server) -> None:
    server.own()
    answered = sender(server).call(0, CALL)
    worker = receiver(server)
    wait_until(lambda: worker.call == CALL)
    worker.answer(Answer(number=7, result="3"))
    assert answered.result(10) == Answer(number=7, result="3")
    assert worker.call is None


def test_a_call_that_comes_again_gets_the_same_answer(server: Server) -> None:
    server.own()
    worker = receiver(server)
    worker.answer(Answer(number=7, result="3"))  # it was lost
    assert sender(server).call(0, CALL).result(10).result == "3"
    assert worker.call is None


def test_a_call_in_which_a_worker_ends_is_not_made_again(server: Server) -> None:
    server.own()
    processes = [4]
    answered = sender(server, lambda _: processes[-1]).call(0, CALL)
    worker = receiver(server)
    processes.append(PROCESS)  # it was started again
    assert "worker 0 was started again" in str(answered.result(10).error)
    assert worker.call is None


def test_arguments_that_nats_does_not_take_are_refused_at_once(server: Server) -> None:
    server.own()
    large = replace(CALL, arguments="x" * (2 << 20))
    with pytest.raises(MessageTooLarge, match="a call, with its arguments"):
        sender(server).call(0, large)
