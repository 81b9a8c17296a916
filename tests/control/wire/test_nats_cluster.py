"""A cluster of three NATS servers: what a job with `delivery.replicas: 3` reserves, and may use, on each of them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attacks import ATTACKS
from tests.control.wire.jwt_nats import NatsInJwtMode, Site
from tests.ports import free_ports

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_operator.errors import NatsFull, NatsUnavailable
from rollfleet_operator.nats.trust import new_keys
from rollfleet_operator.nats_port import JobKey

pytestmark = pytest.mark.slow

MIB = 1 << 20
STORE_MIB = 300
MOST_MIB = 400  # of a server's memory


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[NatsInJwtMode]]:
    """The three servers; each stores 300 MiB."""
    monkeypatch.setenv("GOMEMLIMIT", "256MiB")
    keys, routes = new_keys(os.urandom(32)), [f"127.0.0.1:{port}" for port in free_ports(3)]
    started = []
    for index, route in enumerate(routes):
        folder = tmp_path / f"nats-{index}"
        folder.mkdir()
        cluster = {"name": "all", "listen": route, "routes": [f"nats://{each}" for each in routes]}
        lines = f"server_name: nats-{index}\ncluster: {json.dumps(cluster)}\n"
        started.append(NatsInJwtMode(folder, store_bytes=STORE_MIB * MIB, keys=keys, cluster=lines))
    yield started
    for each in started:
        each.stop()


@pytest.fixture
def nats_server(servers: list[NatsInJwtMode]) -> NatsInJwtMode:
    return servers[0]


async def provision(site: Site, job: CollectorJob) -> None:
    """Create the job's streams, as soon as the servers have found each other."""
    while True:
        try:
            return await site.nats.provision(job)
        except NatsFull:
            raise
        except NatsUnavailable:
            continue


async def refusal(site: Site, job: CollectorJob) -> str:
    """Return why there is no space for a job: servers learn within seconds what the others have reserved."""
    while True:
        try:
            await site.nats.provision(job)
        except NatsFull as error:
            return str(error)
        except NatsUnavailable:  # a server was chosen that has no space
            pass
        await site.nats.deprovision(JobKey(*job.key.split("/")))


@pytest.mark.parametrize("replicas", [1, 3])
async def test_replicated_job_reserves_its_space_once_on_each_server(site: Site, replicas: int) -> None:
    await provision(site, site.job("first", delivery={"replicas": 3}))
    why = await refusal(site, site.job("second", delivery={"replicas": replicas}))
    assert "no suitable peers for placement, insufficient storage" in why
    assert "of 300 MiB are free; jobs hold default/first 192 MiB" in why


async def test_hostile_worker_of_a_replicated_job_takes_little_of_each_server(
    site: Site, servers: list[NatsInJwtMode]
) -> None:
    await provision(site, job := site.job(delivery={"replicas": 3, "maxBytes": "4Mi"}))
    async with site.guest(job, Role.WORKER) as worker:
        for attack, times in ATTACKS:
            for number in range(times // 4):
                await attack(worker.client, subjects_of(job), number)
                if number % 500 == 0:
                    await worker.flush()
            await worker.flush()
    async with site.administrator(subjects_of(job)) as client:
        for stream in await client.jsm().streams_info():
            assert stream.state.messages <= (stream.config.max_msgs or 0)
            assert stream.state.bytes <= (stream.config.max_bytes or 0)
    assert max(server.peak_mib for server in servers) < MOST_MIB
