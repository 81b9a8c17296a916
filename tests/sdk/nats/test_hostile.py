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
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet.worker.worker import Worker
from rollfleet_api.messages import BatchMeta, Control, LearnerPhase, Lease, WorkerStatus, pack
from rollfleet_api.permissions import Role

ASYNC: dict[str, Any] = {"mode": "Async", "workers": 2, "policy": {"random": {}}, "delivery": {"maxBatchesAhead": 4}}
SYNC: dict[str, Any] = ASYNC | {
    "mode": "Sync",
    "env": {"id": "CartPole-v1", "numEnvs": 2},
    "collect": {"framesPerBatch": 12},
}


def test_a_chunk_that_is_sent_repeatedly_is_kept_once(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC)
    link = server.link(Role.WORKER)
    piece, *_ = split(pack_fragment(fragment(), META), of(0, 0), max_chunk_bytes=256)
    for index in range(200):  # of a batch whose other pieces never come
        link.call(link.js.publish(link.subjects.batch_chunk(0, index), piece), timeout_s=5)
    collector = connect()
    publish(link, 7.0, of(1, 0))
    assert values(collector, 1) == [7.0]
    wait_until(lambda: server.queued() == 1)


def test_chunks_of_a_complete_batch_cost_nothing(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC)
    link = server.link(Role.WORKER)
    collector = connect()
    publish(link, 7.0, of(0, 0))
    publish(link, 0.0, of(0, 0), chunk_bytes=256, chunks=slice(1, 200), size=2000)
    wait_until(lambda: server.queued() == 1)
    assert values(collector, 1) == [7.0]
    wait_until(lambda: server.queued() == 0)


def test_messages_of_impossible_workers_are_ignored(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC)
    link = server.link(Role.WORKER)
    for name in ("65536", "9" * 30, "x"):
        subject = f"{link.subjects.prefix}.batches.{name}.began"
        link.call(link.js.publish(subject, pack(Lease(incarnation=1, host="a", pid=1))), timeout_s=5)
    publish(link, 1.0, of(2**16, 0))
    collector = connect()
    publish(link, 7.0, of(1, 0))
    assert values(collector, 1) == [7.0]
    assert collector.stats().corrupt == 4
    wait_until(lambda: server.queued() == 0)


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
    hostile = NatsWorkerTransport(server.link(Role.WORKER), 1)
    hostile.send(fragment(1.0, steps=5000), meta).stored.result(10)
    hostile.send(fragment(1.0, envs=5000, steps=1), meta).stored.result(10)
    hostile.send(fragment(2.0), meta).stored.result(10)
    Sender(server, 0).send(0.0, round_=1)
    collector = connect()
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
    with pytest.raises(OverflowError, match="started 32,768 times"):
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


def test_batches_of_a_replaced_worker_are_counted(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC)
    collector, replaced = connect(), server.link(Role.WORKER)
    NatsWorkerTransport(server.link(Role.WORKER), 0).close()
    successor = NatsWorkerTransport(server.link(Role.WORKER), 0)
    successor.send(fragment(1.0), META).stored.result(10)
    assert values(collector, 1) == [1.0]
    wait_until(lambda: server.queued() == 0)
    publish(replaced, 9.0, of(0, 0))
    wait_until(lambda: server.queued() == 0)
    successor.send(fragment(2.0), META).stored.result(10)
    assert values(collector, 1) == [2.0]
    assert collector.stats().corrupt == 1
