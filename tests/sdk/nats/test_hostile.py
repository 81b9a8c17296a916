"""A hostile worker with valid credentials: its cost is bounded, and batches of other workers arrive."""

from dataclasses import replace
from typing import Any

import pytest
from tests.job_server import Connect, Server, WorkerThread
from tests.sdk.batch_sender import Sender
from tests.sdk.nats.numbered_batches import META, fragment, of, publish, values
from tests.sdk.wire.joined_chunks import split
from tests.waiting import wait_until

from rollfleet.nats.transport import NatsTransport
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.rollout.trajectory_ids import MAX_INCARNATIONS
from rollfleet.testing.rig import receive
from rollfleet.transports.workload import Workload
from rollfleet.wire.codec import LARGEST_BATCH_BYTES
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet.worker.worker import Worker
from rollfleet_api.messages import BatchMeta, Control, KeptBatch, LearnerPhase, Lease, Offer, WorkerStatus, pack
from rollfleet_api.permissions import Role

ASYNC: dict[str, Any] = {"mode": "Async", "workers": 2, "policy": {"random": {}}, "delivery": {"maxBatchesAhead": 4}}
SYNC: dict[str, Any] = ASYNC | {
    "mode": "Sync",
    "env": {"id": "CartPole-v1", "numEnvs": 2},
    "collect": {"framesPerBatch": 12},
}


def test_floods_and_forged_offers_keep_no_batch_of_another_worker_from_the_learner(
    server: Server, connect: Connect
) -> None:
    server.provision(**ASYNC)
    collector, link = connect(), server.link(Role.WORKER)
    never = KeptBatch(sequence=0, nbytes=LARGEST_BATCH_BYTES, chunks=1 << 13, idle=True)
    for sequence, forged in enumerate((never, replace(never, nbytes=0), replace(never, chunks=1))):
        offer = Offer(incarnation=0, process=1, batches=(never, replace(forged, sequence=sequence)))
        link.call(link.publish(link.subjects.offer(0), pack(offer)), timeout_s=5)
    first, *_ = split(pack_fragment(fragment(size=40_000), META), of(0, 0), max_chunk_bytes=1 << 16)
    for number in range(100):  # of batches whose other chunks never come
        link.call(link.publish(link.subjects.chunk(0), first[:8] + number.to_bytes(4) + first[12:]), timeout_s=5)
    honest = NatsWorkerTransport(server.link(Role.WORKER), 1)
    honest.send(fragment(7.0), META)
    honest.send(fragment(8.0, size=200_000), META)
    assert sorted(values(collector, 2)) == [7.0, 8.0]
    assert collector.stats().corrupt == 2


def test_messages_of_impossible_workers_are_ignored(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC)
    collector, link = connect(), server.link(Role.WORKER)
    for name in ("65536", "9" * 30, "x"):
        offer = pack(Offer(incarnation=0, process=0, batches=()))
        link.call(link.publish(f"{link.subjects.prefix}.batches.{name}.offer", offer), timeout_s=5)
    publish(link, 1.0, of(2**16, 0))
    publish(link, 7.0, of(1, 0))
    assert values(collector, 1) == [7.0]
    assert collector.stats().corrupt == 4


def test_heartbeats_of_workers_outside_the_job_are_ignored(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC)
    collector, link = connect(), server.link(Role.WORKER)
    for worker in (2, 65_535, 1):
        status = pack(WorkerStatus(worker=worker, incarnation=0))
        link.call(link.js.publish(link.subjects.worker(worker), status), timeout_s=5)
    wait_until(lambda: 1 in collector.versions())
    assert set(collector.versions()) == {1}


def test_a_fragment_larger_than_the_jobs_is_dropped(server: Server, connect: Connect) -> None:
    """Else the other fragments of its round would be padded to its length, or all of its rows to theirs."""
    server.provision(**SYNC)
    meta = BatchMeta(session=1, round=1, version=1, frames=6)
    collector, hostile = connect(), NatsWorkerTransport(server.link(Role.WORKER), 1)
    for sent in (fragment(1.0, steps=5000), fragment(1.0, envs=5000, steps=1), fragment(2.0)):
        hostile.send(sent, meta)
    Sender(server, 0).send(0.0, round_=1)
    learner: Any = collector._transport
    wait_until(lambda: len(learner._receiver._ready) == 2)
    assert next(collector)["observation"].mean(dim=(1, 2)).tolist() == [0.0, 0.0, 2.0, 2.0]
    assert collector.stats().corrupt == 2


def test_a_damaged_lease_counts_as_none(server: Server) -> None:
    job, link = server.provision(**ASYNC), server.link(Role.WORKER)
    link.call(link.store(link.subjects.lease(0), b"no lease"), timeout_s=5)
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    assert transport.incarnation == 0
    Worker(transport, Workload.of(job), 0).close()


def test_no_incarnation_follows_the_last_one(server: Server) -> None:
    server.provision(**ASYNC)
    link = server.link(Role.WORKER)
    last = pack(Lease(incarnation=MAX_INCARNATIONS - 1, host="a", pid=1))
    link.call(link.store(link.subjects.lease(0), last), timeout_s=5)
    with pytest.raises(OverflowError, match="taken 32,768 times"):
        NatsWorkerTransport(server.link(Role.WORKER), 0)


def test_a_restored_run_of_many_incarnations_starts_its_workers(server: Server) -> None:
    job, link = server.provision(**ASYNC | {"workers": 1}), server.link(Role.WORKER)
    learner = NatsTransport(server.link(Role.LEARNER), job)
    last = pack(Lease(incarnation=MAX_INCARNATIONS - 2, host="a", pid=1))
    link.call(link.store(link.subjects.lease(0), last), timeout_s=5)
    worker = WorkerThread(server, job, 0)
    control = Control(session=1, phase=LearnerPhase.RUN, round=0, version=0, origin=MAX_INCARNATIONS)
    learner.control(control)
    (arrival,) = receive(learner)
    assert arrival.incarnation == MAX_INCARNATIONS - 1
    learner.control(replace(control, phase=LearnerPhase.COMPLETE))
    worker.join()
    assert worker.error is None
    learner.close()
