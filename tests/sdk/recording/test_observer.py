"""An evaluator receives every batch, live; learner and workers do not notice it."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

import pytest
from tests.job_server import Connect, Server
from tests.sdk.nats.numbered_batches import META, fragment, of, publish, values
from tests.sdk.wire.joined_chunks import split

import rollfleet
from rollfleet.errors import ConnectionFailed, JobEnded, JobInvalid
from rollfleet.nats import polling, presence
from rollfleet.nats.streams import deprovision
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.recording.observer import Observer
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.messages import Control, LearnerPhase, pack
from rollfleet_api.permissions import Role

Observe = Callable[..., Observer]

ASYNC: dict[str, Any] = {"mode": "Async", "workers": 2, "policy": {"random": {}}, "delivery": {"maxBatchesAhead": 16}}


@pytest.fixture
def observe(server: Server) -> Iterator[Observe]:
    """`rollfleet.observe` of the job `default/test`; closed after the test."""
    with ExitStack() as stack:

        def observe(**more: Any) -> Observer:
            url = server.url(Role.LEARNER)
            seen = rollfleet.observe(server.subjects.key, address=url, timeout_s=10, **more)
            return stack.enter_context(seen)

        yield observe


def seen_by(seen: Observer, count: int) -> list[float]:
    return [float(batch["observation"].mean()) for batch in islice(seen, count)]


def test_several_evaluators_receive_the_learners_batches(server: Server, connect: Connect, observe: Observe) -> None:
    server.provision(**ASYNC)
    evaluators = [observe(), observe()]
    link = server.link(Role.WORKER)
    for sequence in range(4):
        publish(link, float(sequence), of(sequence % 2, sequence // 2), chunk_bytes=256)  # in several chunks
    for evaluator in evaluators:
        assert seen_by(evaluator, 4) == [0.0, 1.0, 2.0, 3.0]
    collector = connect()
    assert values(collector, 4) == [0.0, 1.0, 2.0, 3.0]
    assert collector.stats().missed == 0
    late = observe()
    publish(link, 4.0, of(0, 2))
    assert seen_by(late, 1) == [4.0]  # from its connection on
    assert [evaluator.missed for evaluator in (*evaluators, late)] == [0, 0, 0]


def test_a_batch_sent_twice_is_observed_once_and_a_gap_is_counted(server: Server, observe: Observe) -> None:
    server.provision(**ASYNC)
    evaluator = observe()
    link = server.link(Role.WORKER)
    for sequence in (0, 1, 1, 0, 4):
        publish(link, float(sequence), of(0, sequence))
    assert seen_by(evaluator, 3) == [0.0, 1.0, 4.0]
    assert evaluator.missed == 2


def test_a_batch_that_waits_for_space_is_observed_once(server: Server, connect: Connect, observe: Observe) -> None:
    server.provision(**ASYNC | {"delivery": {"maxBatchesAhead": 1}})
    evaluator = observe()
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    refused = server.link(Role.LEARNER)
    tries: list[str] = []

    async def count() -> None:
        async def on_chunk(message: Any) -> None:
            tries.append(message.subject)

        await refused.client.subscribe(server.subjects.batch_chunk(0, 0), cb=on_chunk)
        await refused.flush()

    refused.call(count())
    sent = [transport.send(fragment(float(number)), META) for number in range(3)]
    seen = seen_by(evaluator, 2)
    while len(tries) < 4:  # the second one was refused at least twice
        assert evaluator.receive(0.01) is None
    assert values(connect(), 3) == [0.0, 1.0, 2.0]
    sent[-1].stored.result(10)
    assert seen + seen_by(evaluator, 1) == [0.0, 1.0, 2.0]
    assert evaluator.missed == 0


def test_an_observer_slower_than_the_workers_counts_lost_batches(
    server: Server, connect: Connect, observe: Observe
) -> None:
    server.provision(**ASYNC)
    evaluator = observe(memory_bytes=1)
    link = server.link(Role.WORKER)
    for sequence in range(6):
        publish(link, float(sequence), of(0, sequence))
    _wait_until_all_have_come(evaluator)
    assert seen_by(evaluator, 1) == [0.0]
    publish(link, 6.0, of(0, 6))
    assert seen_by(evaluator, 1) == [6.0]
    assert evaluator.missed == 5
    assert values(connect(), 7) == [float(number) for number in range(7)]


def _wait_until_all_have_come(evaluator: Observer) -> None:
    link = evaluator._link

    async def waiting() -> int:
        await link.flush()  # what was published before has come, if not to the observer
        return sum(subscription.pending_msgs for subscription in link.client._subs.values())

    while evaluator._link.call(waiting()):
        pass


def test_an_observer_that_does_not_read_its_connection_delays_no_one(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC)
    host, transport = server.host_port.split(":")
    with socket.create_connection((host, int(transport))) as deaf:
        user, password = server.url(Role.LEARNER).removeprefix("nats://").split("@")[0].split(":")
        subject = server.subjects.batch_subjects[0]
        deaf.sendall(f'CONNECT {{"user":"{user}","pass":"{password}"}}\r\nSUB {subject} 1\r\nPING\r\n'.encode())
        answer = b""
        while b"PONG" not in answer:
            answer += deaf.recv(4096)
        worker = NatsWorkerTransport(server.link(Role.WORKER), 0)
        collector = connect()
        for number in range(30):  # twice what NATS buffers for a slow reader
            sending = worker.send(fragment(float(number), envs=2, steps=8, size=70_000), META)
        assert values(collector, 30) == [float(number) for number in range(30)]
        sending.stored.result(10)
        assert collector.stats().missed == 0


def test_corrupt_batches_are_counted_and_later_ones_arrive(server: Server, observe: Observe) -> None:
    server.provision(**ASYNC)
    evaluator = observe()
    link = server.link(Role.WORKER)
    good = next(split(pack_fragment(fragment(), META), of(0, 0), max_chunk_bytes=1 << 16))
    flipped = bytearray(good)
    flipped[-1] ^= 1
    for rubbish in (b"", b"rubbish", good[:-1], bytes(flipped)):
        link.call(link.js.publish(link.subjects.batch_chunk(0, 0), rubbish), timeout_s=5)
    publish(link, 7.0, of(0, 1))
    assert seen_by(evaluator, 1) == [7.0]
    assert evaluator.corrupt == 4


def test_nats_can_be_killed_and_restarted(server: Server, observe: Observe) -> None:
    server.provision(**ASYNC)
    evaluator = observe()
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    transport.send(fragment(0.0), META).stored.result(10)
    assert seen_by(evaluator, 1) == [0.0]
    server.kill()
    server.start_again()
    while not evaluator._link.client.is_connected:
        assert evaluator.receive(0.01) is None
    transport.send(fragment(1.0), META).stored.result(10)
    assert seen_by(evaluator, 1) == [1.0]


def test_an_observer_ends_after_the_last_batch_of_a_complete_job(server: Server, observe: Observe) -> None:
    server.provision(**ASYNC)
    evaluator = observe()
    link, learner = server.link(Role.WORKER), server.link(Role.LEARNER)
    for sequence in range(3):
        publish(link, float(sequence), of(0, sequence))
    complete = Control(session=1, phase=LearnerPhase.COMPLETE, round=0, version=0)
    learner.call(learner.store(learner.subjects.control, pack(complete)))
    assert seen_by(evaluator, 10) == [0.0, 1.0, 2.0]
    with pytest.raises(JobEnded, match="default/test is complete"):
        evaluator.receive(0.0)
    assert seen_by(observe(), 10) == []  # an observer that connects too late


def test_an_observer_ends_when_the_job_is_deleted(
    server: Server, observe: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "POLL_EVERY_S", 0.1)
    monkeypatch.setattr(presence, "DELETED_AFTER_S", 0.3)
    server.provision(**ASYNC)
    evaluator = observe()
    admin = server.link()
    admin.call(deprovision(admin))
    assert seen_by(evaluator, 10) == []


def test_a_workers_credentials_are_refused(server: Server) -> None:
    server.provision(**ASYNC)
    with pytest.raises(ConnectionFailed, match="may not read the batches of default/test: use its learner's"):
        rollfleet.observe(server.subjects.key, address=server.url(Role.WORKER), timeout_s=10)


def test_invalid_arguments_are_named() -> None:
    with pytest.raises(JobInvalid, match="memory_bytes: must be at least 1, got 0"):
        rollfleet.observe("test", address="nats://127.0.0.1:1", memory_bytes=0)
    with pytest.raises(JobInvalid, match="`device`: 'gpu' is not a torch device"):
        rollfleet.observe("test", address="nats://127.0.0.1:1", device="gpu")
    with pytest.raises(JobInvalid, match="segment_bytes: must be at least 1, got 0"):
        rollfleet.record("test", "x", address="nats://127.0.0.1:1", segment_bytes=0)
