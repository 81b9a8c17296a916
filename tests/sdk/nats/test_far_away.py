"""A learner, or a worker, behind a slow way to NATS."""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from nats.aio.msg import Msg
from tests.faults.proxy import Proxy
from tests.job_server import Server, WorkerThread, actor_critic, join_all
from tests.sdk.nats.numbered_batches import ASYNC, META, SYNC, fragment

import rollfleet
from rollfleet.nats.link import Link
from rollfleet.nats.transport import NatsTransport
from rollfleet.testing.rig import run
from rollfleet_api.messages import Progress, WorkerStatus, pack
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Ask

WAY_S = 0.04
MANY = 500

Through = Callable[[Role], Link]


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy([server.host_port])
    yield proxy
    proxy.close()


@pytest.fixture
def through(server: Server, proxy: Proxy) -> Through:
    def connect(role: Role) -> Link:
        server.way = proxy.host_port
        try:
            return server.link(role)
        finally:
            server.way = server.host_port

    return connect


def test_a_learner_hears_hundreds_of_workers_when_it_connects(server: Server, proxy: Proxy, through: Through) -> None:
    job, link = server.own(**ASYNC | {"workers": MANY}), server.link(Role.WORKER)
    follows = Progress(session=1, frames=640)

    async def answer(_: Msg) -> None:
        for worker in range(MANY):
            status = WorkerStatus(worker=worker, incarnation=0, process=7, follows=follows)
            await link.publish(link.subjects.worker(worker), pack(status))

    link.call(link.client.subscribe(link.subjects.ask(Ask.HEARTBEATS), cb=answer))
    proxy.delay_s = WAY_S
    learner = NatsTransport(through(Role.LEARNER), job)
    assert (len(learner.workers()), learner.resumed.frames) == (MANY, 640)
    learner.close()


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("far", [Role.WORKER, Role.LEARNER])
def test_a_job_runs_over_a_slow_way_without_a_cut(
    spec: dict[str, Any], far: Role, server: Server, proxy: Proxy, through: Through
) -> None:
    job = server.own(**spec | {"workers": 1})
    proxy.delay_s = WAY_S
    near = server.link
    worker = WorkerThread(server, job, 0, link=through(Role.WORKER) if far is Role.WORKER else None)
    link = through(Role.LEARNER) if far is Role.LEARNER else near(Role.LEARNER)
    with rollfleet.Collector.over(NatsTransport(link, job), job, actor_critic()) as collector:
        versions = [int(batch["collector", "policy_version"].max()) for batch in islice(collector, 5)]
        assert versions == sorted(versions)
        assert collector.stats().repeated == collector.stats().missed == 0
    join_all([worker])
    assert proxy.connections == 1


@pytest.mark.slow  # its link takes 10 s
def test_a_batch_over_a_slow_link_comes_once_and_the_connection_stays(
    server: Server, proxy: Proxy, through: Through
) -> None:
    job = server.own(**ASYNC | {"workers": 1, "policy": {"random": {}}, "delivery": {"compression": "None"}})
    learner, link = NatsTransport(server.link(Role.LEARNER), job), through(Role.WORKER)
    transport = server.worker_transport(0, link)
    run(learner, version=0)
    proxy.bytes_per_s = 150_000.0
    sending = transport.send(fragment(1.0, size=50_000), META)  # 1.6 MB
    arrival, until_s = None, time.monotonic() + 60
    while arrival is None and time.monotonic() < until_s:
        arrival = learner.receive(timeout_s=1.0)
    assert arrival is not None
    learner.take(arrival)
    sending.delivered.result(30)
    assert proxy.connections == 1
    assert link.client.stats["out_bytes"] < 1.2 * arrival.nbytes
    learner.close()
