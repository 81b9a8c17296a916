"""An observer receives every batch, live; learner and workers do not notice it."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from tests.faults.proxy import Proxy
from tests.job_server import Connect, Server
from tests.sdk.nats.numbered_batches import META, fragment, of, publish, values

import rollfleet
from rollfleet.errors import ConnectionFailed, JobEnded, JobInvalid
from rollfleet.nats.job_source import read_job
from rollfleet.nats.link import Link
from rollfleet.recording.observer import Observer
from rollfleet.recording.recorder import MEMORY_BYTES
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.messages import Control, LearnerPhase, pack
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Ask

Observe = Callable[..., Observer]

ASYNC: dict[str, Any] = {"mode": "Async", "workers": 2, "policy": {"random": {}}, "delivery": {"maxBatchesAhead": 16}}


@pytest.fixture
def observe(server: Server) -> Iterator[Observe]:
    with ExitStack() as stack:

        def observe(*, memory_bytes: int = MEMORY_BYTES, link: Link | None = None) -> Observer:
            link = link or server.link(Role.LEARNER)
            seen = Observer(link, link.call(read_job(link, timeout_s=10)), memory_bytes=memory_bytes)
            stack.callback(seen.close)
            return seen

        yield observe


def seen_by(seen: Observer, count: int) -> list[float]:
    """The numbers of the next batches, or of those that come before the job's end."""
    numbers: list[float] = []
    while len(numbers) < count:
        try:
            if assembled := seen.receive(1.0):
                numbers.append(float(unpack_fragment(assembled.buffer)[1].steps["observation",].mean()))
        except JobEnded:
            break
    return numbers


def test_several_observers_receive_the_learners_batches(server: Server, connect: Connect, observe: Observe) -> None:
    server.own(**ASYNC)
    collector, observers = connect(), [observe(), observe()]
    link = server.link(Role.WORKER)
    for sequence in range(4):
        publish(link, float(sequence), of(sequence % 2, sequence // 2), chunk_bytes=256)  # in several chunks
    for observer in observers:
        assert seen_by(observer, 4) == [0.0, 1.0, 2.0, 3.0]
    assert values(collector, 4) == [0.0, 1.0, 2.0, 3.0]
    assert collector.stats().missed == 0
    late = observe()
    publish(link, 4.0, of(0, 2))
    assert seen_by(late, 1) == [4.0]  # from its connection on
    assert [observer.missed for observer in (*observers, late)] == [0, 0, 0]


def test_a_batch_sent_twice_is_observed_once_and_a_gap_is_counted(server: Server, observe: Observe) -> None:
    server.own(**ASYNC)
    observer = observe()
    link = server.link(Role.WORKER)
    for sequence in (0, 1, 1, 0, 4):
        publish(link, float(sequence), of(0, sequence))
    assert seen_by(observer, 3) == [0.0, 1.0, 4.0]
    assert observer.missed == 2


def test_an_observer_that_is_too_slow_counts_lost_batches(server: Server, connect: Connect, observe: Observe) -> None:
    server.own(**ASYNC)
    collector, of_observer = connect(), server.link(Role.LEARNER)
    observer = observe(memory_bytes=1, link=of_observer)
    link = server.link(Role.WORKER)
    for sequence in range(6):
        publish(link, float(sequence), of(0, sequence))
    _wait_until_all_have_come(of_observer)
    assert seen_by(observer, 1) == [0.0]
    publish(link, 6.0, of(0, 6))
    assert seen_by(observer, 1) == [6.0]
    assert observer.missed == 5
    assert values(collector, 7) == [float(number) for number in range(7)]


def _wait_until_all_have_come(link: Link) -> None:
    async def waiting() -> int:
        await link.flush()  # what was published before has come, if not to the observer
        return sum(subscription.pending_msgs for subscription in link.client._subs.values())  # noqa: SLF001 (nats-py's)

    while link.call(waiting()):
        pass


def test_an_observer_that_does_not_read_its_connection_delays_no_one(server: Server, connect: Connect) -> None:
    server.own(**ASYNC)
    host, transport = server.host_port.split(":")
    with socket.create_connection((host, int(transport))) as deaf:
        user, password = server.url(Role.LEARNER).removeprefix("nats://").split("@")[0].split(":")
        subject = server.subjects.batches
        deaf.sendall(f'CONNECT {{"user":"{user}","pass":"{password}"}}\r\nSUB {subject} 1\r\nPING\r\n'.encode())
        answer = b""
        while b"PONG" not in answer:
            answer += deaf.recv(4096)
        collector, worker = connect(), server.worker_transport(0)
        for number in range(30):  # twice what NATS buffers for a slow reader
            sending = worker.send(fragment(float(number), envs=2, steps=8, size=70_000), META)
        assert values(collector, 30) == [float(number) for number in range(30)]
        sending.delivered.result(10)
        assert collector.stats().missed == 0


def test_an_observer_ends_after_the_last_batch_of_a_complete_job(server: Server, observe: Observe) -> None:
    server.own(**ASYNC)
    observer = observe()
    link, learner = server.link(Role.WORKER), server.link(Role.LEARNER)
    for sequence in range(3):
        publish(link, float(sequence), of(0, sequence))
    complete = Control(session=1, phase=LearnerPhase.COMPLETE, round=0, version=0)
    learner.call(learner.publish(learner.subjects.control, pack(complete)))
    assert seen_by(observer, 10) == [0.0, 1.0, 2.0]
    with pytest.raises(JobEnded, match="default/test is complete"):
        observer.receive(0.0)


def test_an_observer_of_a_deleted_job_ends(server: Server, observe: Observe) -> None:
    server.own(**ASYNC)
    observer = observe()
    server.delete()
    assert seen_by(observer, 10) == []


def test_an_observer_asks_for_what_a_cut_may_have_lost(server: Server, observe: Observe) -> None:
    server.own(**ASYNC)
    with closing(Proxy([server.host_port])) as proxy:
        server.way = proxy.host_port
        observer = observe()
        server.way = server.host_port
        asked = [server.heard(server.subjects.ask(what), lambda _: True) for what in (Ask.JOB, Ask.CONTROL)]
        proxy.cut()
        assert all(each.wait(20) for each in asked)
        observer.close()


def test_a_workers_credentials_are_refused(server: Server) -> None:
    server.own(**ASYNC)
    with pytest.raises(ConnectionFailed, match="may not read the batches of default/test: use its learner's"):
        rollfleet.record(server.subjects.key, address=server.url(Role.WORKER), timeout_s=10)


def test_invalid_arguments_are_named() -> None:
    for name in ("memory_bytes", "segment_bytes"):
        zero: Any = {name: 0}
        with pytest.raises(JobInvalid, match=f"{name}: must be at least 1, got 0"):
            rollfleet.record("test", "x", address="nats://127.0.0.1:1", **zero)
