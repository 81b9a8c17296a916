"""A hostile worker with valid credentials: its cost is bounded, and batches of other workers arrive."""

from dataclasses import replace
from typing import Any

from tests.job_server import Connect, Server
from tests.sdk.nats.numbered_batches import META, fragment, of, publish, values
from tests.sdk.wire.joined_chunks import split
from tests.waiting import wait_until

from rollfleet.wire.codec import LARGEST_BATCH_BYTES
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.messages import WorkerStatus, pack
from rollfleet_api.permissions import Role
from rollfleet_api.transfers import KeptBatch, Offer

ASYNC: dict[str, Any] = {"mode": "Async", "workers": 2, "policy": {"random": {}}, "delivery": {"maxBatchesAhead": 4}}


def test_floods_and_forged_offers_keep_no_batch_of_another_worker_from_the_learner(
    server: Server, connect: Connect
) -> None:
    server.own(**ASYNC)
    collector, link = connect(), server.link(Role.WORKER)
    never = KeptBatch(sequence=0, nbytes=LARGEST_BATCH_BYTES, chunks=1 << 13, idle=True)
    for sequence, forged in enumerate((never, replace(never, nbytes=0), replace(never, chunks=1))):
        offer = Offer(incarnation=0, process=1, batches=(never, replace(forged, sequence=sequence)))
        link.call(link.publish(link.subjects.offer(0), pack(offer)), timeout_s=5)
    first, *_ = split(pack_fragment(fragment(size=40_000), META), of(0, 0), max_chunk_bytes=1 << 16)
    for number in range(100):  # of batches whose other chunks never come
        link.call(link.publish(link.subjects.chunk(0), first[:8] + number.to_bytes(4) + first[12:]), timeout_s=5)
    honest = server.worker_transport(1)
    honest.send(fragment(7.0), META)
    honest.send(fragment(8.0, size=200_000), META)
    assert sorted(values(collector, 2)) == [7.0, 8.0]
    assert collector.stats().corrupt == 2


def test_messages_of_impossible_workers_are_ignored(server: Server, connect: Connect) -> None:
    server.own(**ASYNC)
    collector, link = connect(), server.link(Role.WORKER)
    for name in ("65536", "9" * 30, "x"):
        offer = pack(Offer(incarnation=0, process=0, batches=()))
        link.call(link.publish(f"{link.subjects.own}.batches.{name}.offer", offer), timeout_s=5)
    publish(link, 1.0, of(2**16, 0))
    publish(link, 7.0, of(1, 0))
    assert values(collector, 1) == [7.0]
    assert collector.stats().corrupt == 4


def test_heartbeats_of_workers_outside_the_job_are_ignored(server: Server, connect: Connect) -> None:
    server.own(**ASYNC)
    collector, link = connect(), server.link(Role.WORKER)
    for worker in (2, 65_535, 1):
        status = pack(WorkerStatus(worker=worker, incarnation=0))
        link.call(link.publish(link.subjects.worker(worker), status), timeout_s=5)
    wait_until(lambda: 1 in collector.versions())
    assert set(collector.versions()) == {1}
