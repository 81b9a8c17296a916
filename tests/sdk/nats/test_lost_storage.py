"""NATS returns without its storage, or without the job: the job continues, or ends clearly."""

from contextlib import suppress
from itertools import islice
from typing import Any

import pytest
from nats.js.errors import NotFoundError
from tests.job_server import Connect, Server, actor_critic, join_all
from tests.sdk.concurrent_calls import begin
from tests.sdk.nats import numbered_batches
from tests.sdk.nats.numbered_batches import META, fragment, of, values
from tests.sdk.wire.joined_chunks import split
from tests.waiting import wait_until

from rollfleet import CollectorJob
from rollfleet.errors import JobEnded
from rollfleet.nats import presence, puller
from rollfleet.nats.link import Link
from rollfleet.nats.streams import deprovision, own, provision
from rollfleet.nats.transport import NatsTransport
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.messages import WorkerState
from rollfleet_api.permissions import Role
from rollfleet_api.ranks import ALONE

ASYNC: dict[str, Any] = numbered_batches.ASYNC | {"delivery": {"storage": "Memory"}}
SYNC: dict[str, Any] = ASYNC | {"mode": "Sync"}


def keep_provisioned(server: Server, job: CollectorJob) -> Link:
    """Act as the job's owner: recreate its streams after NATS has lost them."""
    link = server.link()
    link.call(own(link, job), timeout_s=10)
    return link


def test_only_leases_of_the_jobs_workers_are_kept(server: Server) -> None:
    job = server.provision(**ASYNC)
    link = server.link()
    kept = link.call(own(link, job), timeout_s=10)
    for index in range(1000):
        link.call(link.client.publish(server.subjects.lease(index), b"{}"))
    link.call(link.client.flush())
    wait_until(lambda: server.subjects.lease(1) in kept)
    assert kept.keys() == {server.subjects.lease(0), server.subjects.lease(1)}


def lose_everything(server: Server) -> None:
    server.kill()
    server.start_again(empty=True)


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_job_continues_after_nats_lost_its_storage(spec: dict[str, Any], server: Server, connect: Connect) -> None:
    job = server.provision(**spec)
    keep_provisioned(server, job)
    workers = [server.start_worker(job, index) for index in range(2)]
    with connect(actor_critic()) as collector:
        for batch in islice(collector, 5):
            assert batch.shape[0] == 4 * (2 if spec is SYNC else 1)
        for _ in range(2):
            before = collector.version
            lose_everything(server)
            for batch in islice(collector, 8):
                assert int(batch["collector", "policy_version"].min()) >= before - 8
            assert collector.version == before + 8
    join_all(workers)
    for worker in workers:
        assert worker.transport.incarnation == 0


def test_deliveries_before_a_loss_acknowledge_no_message_stored_after_it(server: Server, connect: Connect) -> None:
    keep_provisioned(server, server.provision(**ASYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 4}}))
    link = server.link(Role.WORKER)

    def send(worker: int, first: int) -> None:
        for sequence in range(3):
            encoded = pack_fragment(fragment(float(first + sequence)), META)
            (chunk,) = split(encoded, of(worker, sequence), max_chunk_bytes=1 << 16)
            link.call(link.store(link.subjects.batch_chunk(worker, 0), chunk), timeout_s=20)

    send(0, 0)
    collector = connect()
    wait_until_delivered(server, 3)
    lose_everything(server)
    send(1, 10)  # with the stream sequences of the first ones
    assert values(collector, 2) == [0.0, 1.0]
    wait_until_delivered(server, 3)
    assert values(collector, 1) == [2.0]
    collector.detach()
    assert values(connect(), 3) == [10.0, 11.0, 12.0]


def wait_until_delivered(server: Server, messages: int) -> None:
    admin = server.link()
    queue, learner = admin.subjects.batches_stream, ALONE.consumer

    def delivered() -> bool:
        with suppress(NotFoundError):  # the learner recreates a lost consumer
            info = admin.call(admin.js.consumer_info(queue, learner), timeout_s=5)
            return bool(info.num_ack_pending == messages)
        return False

    wait_until(delivered)


def test_after_a_loss_a_new_learner_and_a_new_worker_continue_counting(server: Server, connect: Connect) -> None:
    job = server.provision(**SYNC | {"workers": 1})
    keep_provisioned(server, job)
    first = server.start_worker(job, 0)
    collector = connect(actor_critic())
    list(islice(collector, 3))
    collector.detach()
    first.transport.close()
    lose_everything(server)
    second = server.start_worker(job, 0)
    with connect(actor_critic()) as collector:
        assert collector.version == 3
        next(collector)
        assert collector.version == 4
        assert second.transport.incarnation == 1
    second.join()


def test_a_worker_renews_a_lost_lease(server: Server) -> None:
    job = server.provision(**ASYNC)
    ports = [NatsWorkerTransport(server.link(Role.WORKER), 0) for _ in range(3)]
    runner = server.link()
    runner.on_reconnect(lambda: provision(runner, job))  # without a backup
    lose_everything(server)

    def renewed() -> bool:
        latest = NatsWorkerTransport(server.link(Role.WORKER), 0)
        latest.close()
        return latest.incarnation > 2

    wait_until(renewed, 20)
    assert [transport.incarnation for transport in ports] == [0, 1, 2]


def test_a_worker_of_a_deleted_job_ends(server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "DELETED_AFTER_S", 2.0)
    job = server.provision(**ASYNC | {"workers": 1, "policy": {"random": {}}})
    worker = server.start_worker(job, 0)
    collector = connect()
    next(collector)
    worker.wait_for(WorkerState.WAITING_FOR_LEARNER)
    admin = server.link()
    admin.call(deprovision(admin))
    worker.join(20)
    assert isinstance(worker.error, JobEnded)
    assert worker.status is not None
    assert worker.status.state is WorkerState.LEFT
    with pytest.raises(JobEnded):
        list(islice(collector, 10))


def test_busy_learner_of_a_deleted_job_ends(server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller, "EXPIRES_S", 1.0)
    monkeypatch.setattr(presence, "DELETED_AFTER_S", 1.0)
    server.provision(**ASYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 4}})
    collector, worker, admin = connect(), NatsWorkerTransport(server.link(Role.WORKER), 0), server.link()
    for number in range(3):
        worker.send(fragment(float(number)), META).stored.result(10)
    learner = collector._gatherer._transport
    assert isinstance(learner, NatsTransport)
    wait_until(lambda: learner._receiver.full() and not learner._puller._open, 20)  # no request that could end
    admin.call(deprovision(admin))
    worker.close()
    with pytest.raises(JobEnded):
        begin(lambda count: values(collector, count), 10).result(20)
