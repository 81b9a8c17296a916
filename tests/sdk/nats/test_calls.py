"""Calls over NATS: no message of theirs must arrive."""

from tests.job_server import Server
from tests.waiting import wait_until

from rollfleet.nats.calls import CallReceiver, CallSender
from rollfleet_api.messages import Answer, Call
from rollfleet_api.permissions import Role

CALL = Call(number=7, method="env.level", arguments="[[],{}]")


def sender(server: Server) -> CallSender:
    link = server.link(Role.LEARNER)
    made = CallSender(link)
    link.call(made.subscribe())
    return made


def receiver(server: Server) -> CallReceiver:
    link = server.link(Role.WORKER)
    made = CallReceiver(link, 0, lambda: None)
    link.call(made.subscribe())
    return made


def test_a_call_waits_for_a_worker_that_starts_later(server: Server) -> None:
    server.provision()
    answered = sender(server).call(0, CALL)
    worker = receiver(server)
    wait_until(lambda: worker.call == CALL)
    worker.answer(Answer(number=7, result="3"))
    assert answered.result(10) == Answer(number=7, result="3")
    assert worker.call is None


def test_a_call_that_comes_again_gets_the_same_answer(server: Server) -> None:
    server.provision()
    worker = receiver(server)
    worker.answer(Answer(number=7, result="3"))  # it was lost
    assert sender(server).call(0, CALL).result(10).result == "3"
    assert worker.call is None
