"""NATS returns with an older state, as after a power loss: it confirms messages before it writes them to its disk."""

import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.job_server import Connect, Server, actor_critic, join_all
from tests.sdk.concurrent_calls import begin
from tests.sdk.nats.numbered_batches import META, SYNC, fragment, values
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet.errors import LearnerReplaced
from rollfleet.learner import gathering
from rollfleet.nats.state import read_state
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet_api.messages import Control, Manifest, WorkerState, WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.versions import count_of

RANDOM: dict[str, Any] = {"mode": "Async", "policy": {"random": {}}, "delivery": {"maxBatchesAhead": 8}}


def copied(server: Server) -> Path:
    """Copy the server's storage while it runs, as the disk would have it."""
    copy = server.folder / "copy"
    with suppress(shutil.Error):  # of files that were removed meanwhile
        shutil.copytree(server.folder / "jetstream", copy)
    return copy


def put_back(server: Server, copy: Path) -> None:
    server.kill()
    shutil.rmtree(server.folder / "jetstream")
    copy.rename(server.folder / "jetstream")
    server.start_again()


def sent(transport: NatsWorkerTransport, *numbers: float) -> None:
    """Send a batch for each number, and wait until NATS has confirmed them. Report their count."""
    for number in numbers:
        transport.send(fragment(float(number)), META).stored.result(20)
    worker = WorkerStatus(worker=transport._worker, incarnation=transport.incarnation)
    transport.report(replace(worker, batches=transport._sequence))


def transport_of(collector: Collector) -> Any:
    return collector._gatherer._transport


def pull_nothing(collector: Collector) -> Any:
    """Let no batch come to the learner until NATS returns. Return its transport."""
    transport = transport_of(collector)

    async def end_requests() -> None:
        client, inbox = transport._link.client, f"{transport._puller._inbox}.*"
        transport._puller.hold()
        for sid, subscription in client._subs.items():  # the client subscribes again when it reconnects
            if subscription.subject == inbox:
                await client._send_unsubscribe(sid, 0)
        await transport._link.flush()

    transport._link.call(end_requests())
    return transport


def test_rounds_continue_and_the_newest_control_and_weights_are_stored_again(server: Server, connect: Connect) -> None:
    workers = server.start_workers(**SYNC)
    with connect(actor_critic()) as collector:
        list(islice(collector, 3))
        copy = copied(server)
        list(islice(collector, 5))
        put_back(server, copy)
        assert next(collector).shape[0] == 8
        reader = server.link()
        control = reader.call(read_state(reader, server.subjects.control, Control), timeout_s=10)
        manifest = reader.call(read_state(reader, server.subjects.manifest, Manifest), timeout_s=10)
        assert control is not None
        assert manifest is not None
        assert (control.round, count_of(manifest.version)) == (9, 9)
    join_all(workers)


def test_a_round_whose_fragments_were_lost_gets_them_again(server: Server, connect: Connect) -> None:
    server.provision(**SYNC | {"env": {"id": "CartPole-v1", "numEnvs": 2}, "collect": {"framesPerBatch": 12}})
    senders = [NatsWorkerTransport(server.link(Role.WORKER), index) for index in range(2)]
    copy = copied(server)
    collector = connect(actor_critic())
    pull_nothing(collector)
    batch = begin(next, collector)
    for index, sender in enumerate(senders):
        sender.wait_until(lambda sender=sender: sender.control is not None and sender.control.round == 1)  # type: ignore[misc]
        sender.send(fragment(float(index)), replace(META, session=1, round=1)).stored.result(20)
    put_back(server, copy)
    assert batch.result(30)["observation"].mean(dim=(1, 2)).tolist() == [0.0, 0.0, 1.0, 1.0]


def test_a_worker_that_starts_after_the_loss_gets_the_newest_control(server: Server, connect: Connect) -> None:
    job = server.provision(**SYNC)
    first, second = (server.start_worker(job, index) for index in range(2))
    with connect(actor_critic()) as collector:
        list(islice(collector, 3))
        copy = copied(server)
        list(islice(collector, 5))
        second.transport.close()  # it dies with the node
        batch = begin(next, collector)
        first.transport.wait_until(lambda: first.transport.control.round == 9)  # type: ignore[union-attr]
        first.wait_for(WorkerState.WAITING_FOR_LEARNER)
        put_back(server, copy)
        third = server.start_worker(job, 1)
        assert batch.result(30).shape[0] == 8
        assert third.transport.incarnation == 1
    first.join()
    third.join()


def test_a_learner_that_had_just_connected_is_not_replaced_by_its_predecessor(server: Server, connect: Connect) -> None:
    workers = server.start_workers(**SYNC)
    first = connect(actor_critic())
    list(islice(first, 3))
    copy = copied(server)
    first.detach()
    with connect(actor_critic()) as second:  # it has not sent anything that NATS could have lost
        put_back(server, copy)
        link = transport_of(second)._link
        wait_until(lambda: link._recovered.is_set() and link.client.stats["reconnects"])
        assert begin(next, second).result(30).shape[0] == 8
    join_all(workers)


def test_a_learner_that_died_with_nats_has_a_successor_whose_numbers_go_on(server: Server, connect: Connect) -> None:
    workers = server.start_workers(**SYNC)
    first = connect(actor_critic())
    list(islice(first, 3))
    first.detach()
    copy = copied(server)
    second = connect(actor_critic())
    list(islice(second, 9))
    second.detach()
    put_back(server, copy)
    third = connect(actor_critic())  # with the session of the second one
    with suppress(LearnerReplaced):  # unless it heard of the second one when it connected
        begin(next, third).result(30)
    third.detach()
    with connect(actor_critic()) as fourth:
        resumed = transport_of(fourth).resumed
        assert (resumed.session > 2, resumed.round >= 12, resumed.version >= 12) == (True, True, True)
        assert begin(next, fourth).result(30).shape[0] == 8
    join_all(workers)


@pytest.mark.parametrize("lost_batches", ["acknowledged", "under acknowledgement", "right before the next ones"])
def test_batches_of_a_lost_incarnation_are_no_repetitions(server: Server, connect: Connect, lost_batches: str) -> None:
    server.provision(**RANDOM)
    collector, first = connect(), NatsWorkerTransport(server.link(Role.WORKER), 0)
    copy = copied(server)
    first.close()
    lost = NatsWorkerTransport(server.link(Role.WORKER), 0)
    sent(lost, 0, 1, 2)
    receiver = transport_of(collector)._receiver
    wait_until(lambda: len(receiver._ready) == 3)
    lost.close()
    if lost_batches != "acknowledged":
        os.kill(server.pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(server.pid).status() == psutil.STATUS_STOPPED)  # a moment later
    assert values(collector, 3) == [0.0, 1.0, 2.0]
    wait_until(lambda: not receiver._acknowledge_at)  # its acknowledgements are under way
    put_back(server, copy)
    again = NatsWorkerTransport(server.link(Role.WORKER), 0)  # in the same place: with the same host and process id
    assert again.incarnation == lost.incarnation == 1
    if lost_batches != "right before the next ones":
        wait_until(lambda: server.queued() == 0)
    sent(again, 10, 11, 12)
    assert begin(lambda count: values(collector, count), 3).result(20) == [10.0, 11.0, 12.0]
    assert collector.stats().repeated == 0


@pytest.mark.parametrize(("dies", "missed"), [(False, 4), (True, 3)], ids=["the worker lives", "the worker dies"])
def test_lost_batches_are_counted_as_missed(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch, dies: bool, missed: int
) -> None:
    monkeypatch.setattr(gathering, "CHECK_WORKERS_S", 0.05)
    server.provision(**RANDOM)
    collector, worker = connect(), NatsWorkerTransport(server.link(Role.WORKER), 0)
    sent(worker, 0)
    assert values(collector, 1) == [0.0]
    sent(worker, 1)
    copy = copied(server)
    transport = pull_nothing(collector)
    sent(worker, 2, 3, 4, 5)
    if dies:
        wait_until(lambda: transport.workers()[0].batches >= 6)
        collector._gatherer.check_workers()
        worker.close()
    put_back(server, copy)
    sent(NatsWorkerTransport(server.link(Role.WORKER), 0) if dies else worker, 10)
    assert values(collector, 2) == [1.0, 10.0]
    assert collector.stats().missed == missed  # of a worker that died, the last may have been under way
