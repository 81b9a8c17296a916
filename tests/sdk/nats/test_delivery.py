"""Each batch reaches the learner once, over a real nats-server that loses messages."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.job_server import Connect, Server, lose_next
from tests.sdk.nats.numbered_batches import ASYNC, META, fragment, of, publish, values
from tests.sdk.wire.joined_chunks import split
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet.errors import LearnerReplaced
from rollfleet.nats import intake, receiver
from rollfleet.nats.transport import NatsTransport
from rollfleet.testing.rig import run
from rollfleet.wire.fragment_message import pack_fragment, unpack_fragment
from rollfleet_api.job import Compression
from rollfleet_api.messages import LearnerPhase, WorkerState, WorkerStatus, pack
from rollfleet_api.permissions import Role
from rollfleet_api.transfers import Offer, Receipt

PLAIN = {"compression": "None"}  # equal numbers would make small batches
RANDOM: dict[str, Any] = ASYNC | {"policy": {"random": {}}, "delivery": PLAIN}
LARGE = 100_000  # numbers of an observation: batches of 3.2 MB, which the learner asks for


@pytest.mark.parametrize("compression", [*Compression])
def test_batches_are_compressed_as_the_job_says(compression: Compression, server: Server, connect: Connect) -> None:
    server.own(**RANDOM | {"delivery": {"compression": compression.value}})
    collector, transport = connect(), server.worker_transport(0)
    transport.send(fragment(3.0, size=10_000), META)
    assert values(collector, 1) == [3.0]
    assert (collector.stats().bytes < 20_000) == (compression is not Compression.NONE)


@pytest.fixture
def waiting(server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> tuple[Collector, list[int]]:
    """A collector for which four batches wait, and the sizes of those that were decoded."""
    came, decoded = list[object](), list[int]()

    class Noting(intake.Intake):
        def add(self, chunk: Any) -> None:
            super().add(chunk)
            came.extend(self.complete)

    def noting(buffer: Any, **more: Any) -> Any:
        decoded.append(buffer.nbytes)
        return unpack_fragment(buffer, **more)

    monkeypatch.setattr(receiver, "Intake", Noting)
    monkeypatch.setattr(receiver, "unpack_fragment", noting)
    server.own(**RANDOM | {"delivery": {"maxBatchesAhead": 8, "compression": "Auto"}})
    collector, transport = connect(), server.worker_transport(0)
    for number in range(4):
        transport.send(fragment(float(number), size=1_500_000), META)  # 36 MB, and as much again of next observations
    wait_until(lambda: decoded and len(came) == 4)
    return collector, decoded


def test_batches_that_wait_stay_compressed(waiting: tuple[Collector, list[int]]) -> None:
    """Of hundreds of workers they would fill the learner's memory, at a hundred times the size that they came in."""
    collector, decoded = waiting
    assert len(decoded) == 1
    assert values(collector, 4) == [0.0, 1.0, 2.0, 3.0]


def test_batches_that_wait_at_the_end_are_not_decoded(waiting: tuple[Collector, list[int]]) -> None:
    collector, decoded = waiting
    collector.detach()
    assert len(decoded) == 1


@pytest.mark.parametrize(
    ("kind", "size"), [("chunk", 4), ("chunk", LARGE), ("offer", LARGE), ("taken", 4), ("taken", LARGE)]
)
def test_the_next_offer_heals_a_loss(kind: str, size: int, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "ANSWER_S", 1.0)
    job, of_learner, of_worker = server.own(**RANDOM), server.link(Role.LEARNER), server.link(Role.WORKER)
    collector = Collector.over(server.learner_transport(of_learner), job)
    transport = server.worker_transport(0, of_worker)
    lost = lose_next(of_learner if kind == "taken" else of_worker, kind, 2)
    sending = [transport.send(fragment(float(number), size=size), META) for number in range(2)]
    assert sorted(values(collector, 2)) == [0.0, 1.0]
    for each in sending:
        each.delivered.result(20)
    assert len(lost) == 2
    assert (collector.stats().missed, collector.stats().repeated) == (0, 0)


def test_a_worker_keeps_its_batches_until_a_learner_connects(server: Server, connect: Connect) -> None:
    server.own(**RANDOM | {"delivery": PLAIN | {"maxBatchesAhead": 2}})
    transport = server.worker_transport(0)
    sending = [transport.send(fragment(float(number)), META) for number in range(3)]
    sending[1].admitted.result(10)
    assert not any(each.delivered.done() for each in sending)
    assert not sending[2].admitted.done()
    collector = connect()
    assert sorted(values(collector, 3)) == [0.0, 1.0, 2.0]
    for each in sending:
        each.delivered.result(10)
    assert collector.stats().missed == 0


def test_a_successor_gets_what_a_replaced_learner_had_not_taken(server: Server, connect: Connect) -> None:
    server.own(**RANDOM | {"delivery": PLAIN | {"maxBatchesAhead": 4}})
    replaced, transport = connect(acknowledge="manual"), server.worker_transport(0)
    for number in range(2):
        transport.send(fragment(float(number)), META)
    assert values(replaced, 2) == [0.0, 1.0]
    successor = connect()
    with pytest.raises(LearnerReplaced):
        next(replaced)
    replaced.ack()  # too late
    last = transport.send(fragment(2.0), META)
    assert sorted(values(successor, 3)) == [0.0, 1.0, 2.0]
    last.delivered.result(10)


def test_a_worker_believes_a_rank_that_has_not_heard_of_rank_0(server: Server, connect: Connect) -> None:
    server.own(**RANDOM | {"delivery": PLAIN | {"maxBatchesAhead": 1}})
    offers = server.hear(server.subjects.offer(0), Offer)
    transport = server.worker_transport(0)
    transport.report(WorkerStatus(worker=0, incarnation=0))  # the learner numbers it, and it believes receipts
    replaced = connect(acknowledge="manual")
    _, second = [transport.send(fragment(float(number)), META) for number in range(2)]
    assert values(replaced, 1) == [0.0]
    wait_until(lambda: transport.control and offers)
    receipt, link = Receipt(process=offers[-1].process, taken=(0,)), server.link(Role.LEARNER)
    link.call(link.publish(link.subjects.taken(0), pack(receipt)))
    second.admitted.result(10)
    assert values(connect(), 1) == [1.0]


def test_corrupt_batches_are_dropped_and_counted_and_later_ones_arrive(server: Server, connect: Connect) -> None:
    server.own(**RANDOM | {"delivery": PLAIN | {"maxBatchesAhead": 8}})
    collector, link = connect(), server.link(Role.WORKER)
    good = next(split(pack_fragment(fragment(), META), of(0, 0), max_chunk_bytes=1 << 16))
    flipped = bytearray(good)
    flipped[-1] ^= 1
    lying = pack_fragment(replace(fragment(), final={("observation",): torch.zeros(5, 4)}), META)
    for rubbish in (b"", b"rubbish", good[:-1], bytes(flipped), next(split(lying, of(0, 1), max_chunk_bytes=1 << 16))):
        link.call(link.publish(link.subjects.chunk(0), rubbish), timeout_s=5)
    publish(link, 7.0, of(0, 2))
    assert values(collector, 1) == [7.0]
    assert collector.stats().corrupt == 5


@pytest.mark.parametrize("size", [4, LARGE])
def test_batches_sent_at_once_arrive_in_their_order(size: int, server: Server, connect: Connect) -> None:
    server.own(**RANDOM | {"delivery": PLAIN | {"maxBatchesAhead": 2}})
    collector, transport = connect(), server.worker_transport(0)
    for number in range(6):
        transport.send(fragment(float(number), size=size), META)
    assert values(collector, 6) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert collector.stats().repeated == collector.stats().missed == 0


def test_batches_stay_whole_when_their_worker_may_be_further_ahead(server: Server, connect: Connect) -> None:
    server.own(**RANDOM)
    transport, first = server.worker_transport(0), fragment(1.0)
    transport.send(first, META)
    second = transport.send(fragment(2.0), META)
    server.own(**RANDOM | {"delivery": PLAIN | {"maxBatchesAhead": 3}})
    transport.wait_until(second.admitted.done)
    first.steps["observation",].fill_(9.0)  # the worker writes into the same memory again
    collector = connect()
    assert values(collector, 2) == [1.0, 2.0]
    assert collector.stats().corrupt == 0


def test_a_kept_batch_fits_a_server_that_comes_back_with_a_smaller_limit(server: Server, connect: Connect) -> None:
    server.own(**RANDOM)
    transport = server.worker_transport(0)
    transport.send(fragment(5.0, size=LARGE), META)
    server.restart(max_payload=1 << 16)
    collector = connect()
    assert values(collector, 1) == [5.0]
    assert collector.stats().corrupt == 0


def test_a_worker_that_waits_for_the_learner_leaves_when_the_job_completes(server: Server) -> None:
    job = server.own(**RANDOM)
    learner = NatsTransport(server.link(Role.LEARNER), job)
    run(learner, version=0)
    worker = server.start_worker(job, 0)
    wait_until(lambda: worker.status and worker.status.batches)  # it takes none
    worker.wait_for(WorkerState.WAITING_FOR_LEARNER)
    run(learner, version=0, phase=LearnerPhase.COMPLETE)
    worker.join()
    learner.close()
    assert worker.status is not None
    assert worker.status.state is WorkerState.COMPLETE
