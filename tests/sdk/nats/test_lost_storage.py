"""NATS returns without its storage, or without the job: the job continues, or ends clearly."""

from itertools import islice
from typing import Any

import pytest
from tests.job_server import Connect, Server, actor_critic, join_all
from tests.sdk.nats.numbered_batches import ASYNC, META, SYNC, fragment, values
from tests.waiting import wait_until

from rollfleet.errors import JobEnded, LearnerReplaced
from rollfleet.nats import presence
from rollfleet.nats.polling import insist
from rollfleet.nats.streams import deprovision, own, provision
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet_api.messages import WorkerState
from rollfleet_api.permissions import Role


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
    server.start_again()


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_job_continues_after_nats_lost_its_storage(spec: dict[str, Any], server: Server, connect: Connect) -> None:
    workers = server.start_workers(**spec)
    with connect(actor_critic()) as collector:
        for batch in islice(collector, 5):
            assert batch.shape[0] == 4 * (2 if spec is SYNC else 1)
        for _ in range(2):
            before = collector.version
            lose_everything(server)
            for batch in islice(collector, 8):
                assert int(batch["collector", "policy_version"].min()) >= before - 8
            assert collector.version == before + 8
        while collector.stats().missed:  # a batch that a loss has delayed counts until it comes
            next(collector)
        assert collector.stats().repeated == 0
    join_all(workers)
    for worker in workers:
        assert worker.transport.incarnation == 0


def test_batches_that_a_worker_keeps_outlast_nats_and_a_learner(server: Server, connect: Connect) -> None:
    server.own(**ASYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 2}})
    first, transport = connect(acknowledge="manual"), NatsWorkerTransport(server.link(Role.WORKER), 0)
    transport.send(fragment(0.0), META)
    assert values(first, 1) == [0.0]
    first.detach()
    lose_everything(server)
    transport.send(fragment(1.0), META)
    successor = connect()
    assert sorted(values(successor, 2)) == [0.0, 1.0]
    assert (successor.stats().missed, successor.stats().repeated) == (0, 0)


def test_a_replaced_learner_takes_no_lease_again_after_a_loss(server: Server, connect: Connect) -> None:
    server.own(**ASYNC | {"policy": {"random": {}}})
    replaced: Any = [connect(rank=rank, ranks=2)._transport for rank in range(2)]
    successor, worker = connect(), NatsWorkerTransport(server.link(Role.WORKER), 0)
    lose_everything(server)
    for transport in replaced:
        with pytest.raises(LearnerReplaced):
            transport._link.call(insist(transport._look), timeout_s=20)
    worker.send(fragment(1.0), META)
    assert values(successor, 1) == [1.0]


def test_after_a_loss_a_new_learner_and_a_new_worker_continue_counting(server: Server, connect: Connect) -> None:
    job = server.own(**SYNC | {"workers": 1})
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


def test_worker_and_learner_of_a_deleted_job_end(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(JobEnded, match="default/test was deleted"):
        list(islice(collector, 10))
