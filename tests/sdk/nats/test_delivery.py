"""Each batch reaches the learner once, over a real nats-server that is killed and restarted."""

import asyncio
import json
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.job_server import Connect, Server, actor_critic, join_all
from tests.sdk.nats.numbered_batches import ASYNC, META, SYNC, fragment, of, publish, values
from tests.sdk.wire.joined_chunks import split
from tests.waiting import wait_until

from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.messages import Control, LearnerPhase, WorkerState, WorkerStatus, pack
from rollfleet_api.permissions import Role


def test_a_batch_delivered_twice_is_received_once(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 8}})
    link = server.link(Role.WORKER)
    for sequence in (0, 1, 1, 0):
        publish(link, float(sequence), of(0, sequence))
    collector = connect()
    assert values(collector, 2) == [0.0, 1.0]
    wait_until(lambda: server.queued() == 0)  # NATS has the acknowledgements
    for sequence in (1, 0, 2):
        publish(link, float(sequence), of(0, sequence))
    publish(link, 10.0, of(1, 0))
    assert values(collector, 2) == [2.0, 10.0]
    assert (collector.stats().repeated, collector.stats().missed) == (2, 0)
    collector.detach()
    assert server.queued() == 0


def test_a_chunk_whose_acknowledgement_was_lost_does_not_block_its_worker(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"workers": 2, "policy": {"random": {}}, "delivery": {"maxBatchesAhead": 1}})
    link = server.link(Role.WORKER)
    collector = connect()
    publish(link, 0.0, of(0, 0), chunk_bytes=200)
    values(collector, 1)
    for sequence in range(12):  # another worker goes on
        wait_until(lambda: server.queued() == 0)
        publish(link, float(sequence), of(1, sequence))
        assert values(collector, 1) == [float(sequence)]
    publish(link, 0.0, of(0, 0), chunk_bytes=200, chunks=slice(1))
    wait_until(lambda: server.queued() == 0, 20.0)


def test_first_chunks_leave_the_queue_first(server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    server.provision(**ASYNC | {"policy": {"random": {}}})
    left: list[int] = []  # the queue's first message after each confirmed acknowledgement
    request, collector, watch = Client.request, connect(), server.link()

    def first() -> int:
        info = watch.call(watch.js.stream_info(server.subjects.batches_stream), timeout_s=5)
        return int(info.state.first_seq)

    async def noted(client: Client, subject: str, payload: bytes = b"", **options: Any) -> Msg:
        answer = await request(client, subject, payload, **options)
        if payload == b"+ACK":
            left.append(await asyncio.to_thread(first))
        return answer

    publish(server.link(Role.WORKER), 1.0, of(0, 0), chunk_bytes=200)
    chunks = server.queued()
    monkeypatch.setattr(Client, "request", noted)
    assert values(collector, 1) == [1.0]
    wait_until(lambda: len(left) == 2)
    assert chunks > 2
    assert left[1] - left[0] == chunks - 1


def test_chunks_that_a_learner_left_behind_do_not_block_their_worker(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 1}})
    link = server.link(Role.WORKER)
    others = slice(1, None)
    publish(link, 0.0, of(0, 0), chunk_bytes=200, chunks=others)  # a learner ended after it had acknowledged the first
    collector = connect()
    publish(link, 1.0, of(0, 1), chunk_bytes=200, chunks=slice(1))
    wait_until(lambda: server.queued() == 1)
    publish(link, 1.0, of(0, 1), chunk_bytes=200, chunks=others)
    assert values(collector, 1) == [1.0]


def test_corrupt_batches_are_dropped_and_counted_and_later_ones_arrive(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 8}})
    link = server.link(Role.WORKER)
    good = next(split(pack_fragment(fragment(), META), of(0, 0), max_chunk_bytes=1 << 16))
    flipped = bytearray(good)
    flipped[-1] ^= 1
    lying = pack_fragment(replace(fragment(), final={("observation",): torch.zeros(5, 4)}), META)
    for rubbish in (b"", b"rubbish", good[:-1], bytes(flipped), next(split(lying, of(0, 1), max_chunk_bytes=1 << 16))):
        link.call(link.js.publish(link.subjects.batch_chunk(0, 0), rubbish), timeout_s=5)
    publish(link, 7.0, of(0, 2))
    collector = connect()
    assert values(collector, 1) == [7.0]
    assert collector.stats().corrupt == 5
    collector.detach()
    assert server.queued() == 0


def test_half_a_batch_of_a_dead_worker_does_not_block_its_next_incarnation(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"policy": {"random": {}}})
    dead = server.link(Role.WORKER)
    transport = NatsWorkerTransport(dead, 0)
    publish(dead, 1.0, of(0, 0), chunk_bytes=256, chunks=slice(2))  # then it dies
    transport.close()
    collector = connect()
    alive = NatsWorkerTransport(server.link(Role.WORKER), 0)
    assert alive.incarnation == 1
    sending = alive.send(fragment(2.0), META)
    alive.report(WorkerStatus(worker=0, incarnation=alive.incarnation))
    assert values(collector, 1) == [2.0]
    sending.stored.result(5)


def test_batches_sent_at_once_arrive_in_their_order(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 2}})
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    collector = connect()
    for number in range(8):
        transport.send(fragment(float(number), size=500_000), META)
    assert values(collector, 8) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert collector.stats().repeated == collector.stats().missed == 0


@pytest.mark.parametrize("lost", [1, 20], ids=["of the first chunk", "of all chunks"])
def test_lost_confirmations_of_chunks_do_not_hold_up_their_batch(lost: int, server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"policy": {"random": {}}})
    transport = NatsWorkerTransport(link := server.link(Role.WORKER), 0)
    confirmed, times = link.js.publish, iter(range(lost))

    async def publish_and_lose(*args: Any, **kwargs: Any) -> Any:
        answer = await confirmed(*args, **kwargs)
        if next(times, None) is not None:
            raise TimeoutError
        return answer

    link.js.publish = publish_and_lose  # type: ignore[method-assign]
    large = [fragment(float(number), envs=2, steps=1, size=2_000_000) for number in range(2)]  # 16 chunks each
    sending = [transport.send(each, META) for each in large]
    collector = connect()
    assert values(collector, 2) == [0.0, 1.0]
    for each in sending:
        each.stored.result(10)
    wait_until(lambda: server.queued() == 0)  # what was stored twice is acknowledged, too
    collector.detach()


def test_chunks_fit_the_servers_max_payload(server: Server, connect: Connect) -> None:
    server.kill()
    config = server.folder / "nats.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_payload": 4096}))
    server.start_again()
    server.start_workers(**SYNC | {"collect": {"framesPerBatch": 1024}})
    with connect(actor_critic()) as collector:
        assert [batch.shape for batch in islice(collector, 3)] == [(8, 128)] * 3
        assert collector.stats().bytes / 6 > 4 * 4096


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["sync", "async"])
def test_nats_can_be_killed_and_restarted(spec: dict[str, Any], server: Server, connect: Connect) -> None:
    workers = server.start_workers(**spec)
    with connect(actor_critic()) as collector:
        seen = [batch["collector", "traj_ids"] for batch in islice(collector, 5)]
        for _ in range(2):
            server.kill()
            server.start_again()
            seen += [batch["collector", "traj_ids"] for batch in islice(collector, 10)]
        assert collector.frames == sum(ids.numel() for ids in seen)
        assert collector.stats().missed == 0
        assert collector.version == 25
    join_all(workers)
    for worker in workers:
        assert worker.transport.incarnation == 0


def test_a_worker_that_waits_for_space_leaves_when_the_job_completes(server: Server) -> None:
    job = server.provision(**ASYNC | {"policy": {"random": {}}})
    learner = server.link(Role.LEARNER)
    control = Control(session=1, phase=LearnerPhase.RUN, round=0, version=0)
    learner.call(learner.store(learner.subjects.control, pack(control)))
    worker = server.start_worker(job, 0)
    worker.wait_for(WorkerState.WAITING_FOR_LEARNER)  # the first batch takes its slot
    learner.call(learner.store(learner.subjects.control, pack(replace(control, phase=LearnerPhase.COMPLETE))))
    worker.join()
    assert worker.status is not None
    assert worker.status.state is WorkerState.COMPLETE
