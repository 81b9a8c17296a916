"""The chart's NATS as a cluster of three: its own configuration on three real nats-servers."""

import asyncio
import base64
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import pytest
from tests.job_server import WorkerThread
from tests.ports import free_ports

import rollfleet
from rollfleet import ActorCritic, CollectorJob
from rollfleet.nats.embedded_server import find_nats_server
from rollfleet.nats.link import Link
from rollfleet_api.address import CA, Address
from rollfleet_api.job import API_VERSION, KIND
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import Server
from rollfleet_operator.nats.server_port import NatsOnServer
from rollfleet_operator.nats.settings import NatsSettings
from rollfleet_operator.nats.trust import new_keys, trust_configuration
from rollfleet_operator.nats.users import role_credentials
from rollfleet_operator.nats_port import JobKey

if TYPE_CHECKING:
    from tests.control.chart.helm import Helm, Rendered

KEYS = new_keys(b"k" * 32)
SERVERS = range(3)
START_S = 60.0
STATE_BYTES = 16 << 20
JOB: dict[str, Any] = {
    "mode": "Async",
    "workers": 2,
    "env": {"id": "CartPole-v1", "numEnvs": 2},
    "policy": {"mlp": {}},
    "collect": {"framesPerBatch": 16},
    "weights": {"maxLag": 1000000},  # no batch is too old
    "delivery": {"replicas": 3, "maxBytes": "16Mi", "maxBatchesAhead": 2},
}


class Cluster:
    """Three nats-servers with the chart's own configuration; only paths, ports and addresses are this test's.

    Attributes:
        processes: The servers.
        job: The job of the test.
    """

    def __init__(self, rendered: "Rendered", folder: Path) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._folder, self._rendered, self._links = folder, rendered, ExitStack()
        self._ports = [free_ports(3) for _ in SERVERS]  # clients, routes, health
        for name, encoded in rendered.of("Secret")["rollfleet-nats-tls"]["data"].items():
            (folder / name).write_bytes(base64.b64decode(encoded))
        self.job = job("uid-1")
        for index in SERVERS:
            self.start(index, rendered.of("Secret")["rollfleet-nats-routes"]["data"]["routes.conf"])

    def start(self, index: int, routes: str = "") -> None:
        """Start a server; `routes`: the content of its Secret, the first time."""
        where = self._folder / f"rollfleet-nats-{index}"
        if routes:
            where.mkdir()
            (where / "trust.conf").write_text(trust_configuration(KEYS, now_s=int(time.time())))
            config = self._rendered.of("ConfigMap")["rollfleet-nats"]["data"]["nats.conf"]
            (where / "nats.conf").write_text(self._local(config, index))
            (where / "routes.conf").write_text(self._local(base64.b64decode(routes).decode(), index))
        command = [str(find_nats_server()), "--config", str(where / "nats.conf")]
        with (where / "log").open("a") as log:
            process = subprocess.Popen(command, stderr=log, env=os.environ | {"SERVER_NAME": where.name})
        self.processes[index : index + 1] = [process]

    def _local(self, text: str, index: int) -> str:
        port, route, health = self._ports[index]
        text = text.replace("/etc/nats-certificate/", f"{self._folder}/")
        text = text.replace("/data/", f"{self._folder}/rollfleet-nats-{index}/data/")
        text = text.replace("0.0.0.0:4222", f"127.0.0.1:{port}").replace("0.0.0.0:8222", f"127.0.0.1:{health}")
        text = text.replace("0.0.0.0:6222", f"127.0.0.1:{route}")
        for other in SERVERS:
            host = f"rollfleet-nats-{other}.rollfleet-nats-pods.site.svc:6222"
            text = text.replace(host, f"localhost:{self._ports[other][1]}")
        return text.replace("lame_duck_grace_period: 10s", "lame_duck_grace_period: 100ms")

    def healthy(self, index: int) -> bool:
        """Whether the kubelet would count the server as started and ready."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[index][2]}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:  # also a status that is no success
            return False

    def wait_until_healthy(self) -> None:
        until = time.monotonic() + START_S
        while not all(self.healthy(index) for index in SERVERS):
            assert time.monotonic() < until, self.log()
            time.sleep(0.05)

    def restart(self, index: int) -> None:
        """Restart a server as the kubelet does: its `preStop`, its end, and until it is ready again."""
        self.processes[index].send_signal(signal.SIGUSR2)  # `--signal ldm`
        self.processes[index].wait(START_S)
        self.start(index)
        self.wait_until_healthy()

    def log(self) -> str:
        return "\n".join(path.read_text()[-1500:] for path in self._folder.glob("*/log"))

    @property
    def url(self) -> str:
        return ",".join(f"tls://localhost:{port}" for port, _, _ in self._ports)

    def operator(self) -> NatsOnServer:
        server = Server(url=self.url, ca=(self._folder / "ca.crt").read_bytes())
        return NatsOnServer(NatsSettings(server=server, keys=KEYS, state_bytes=STATE_BYTES))

    def credentials(self, role: Role) -> Path:
        file = self._folder / f"{role}.creds"
        file.write_bytes(role_credentials(self.job, role, KEYS, issued_s=int(time.time()), life_s=3600))
        return file

    def link(self, role: Role) -> Link:
        ca, credentials = self._folder / "ca.crt", self.credentials(role)
        link = Link(Address(url=self.url, job=self.job.key, credentials=credentials, ca=ca), role=role)
        self._links.callback(link.close)
        return link

    def stop(self) -> None:
        self._links.close()
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(helm: "Helm", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    rendered = helm.render(nats__replicas=3, nats__tls__names=["localhost"], nats__jetstream__fileBytes="1Gi")
    running = Cluster(rendered, tmp_path)
    monkeypatch.setenv(CA, str(tmp_path / "ca.crt"))
    try:
        running.wait_until_healthy()
        yield running
    finally:
        running.stop()


def job(uid: str) -> CollectorJob:
    metadata = {"name": "a", "namespace": "default", "uid": uid}
    return parse_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": JOB})


async def provisioned(cluster: Cluster, job: CollectorJob) -> None:
    """The operator's attempts, until all servers know the accounts, and each other's free space."""
    nats = cluster.operator()
    try:
        async with asyncio.timeout(START_S):
            while True:
                try:
                    return await nats.provision(job)
                except NatsUnavailable:
                    await asyncio.sleep(0.2)
    finally:
        await nats.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rolling_restart_costs_no_batch(cluster: Cluster) -> None:
    asyncio.run(provisioned(cluster, cluster.job))
    workers = [WorkerThread(cluster, cluster.job, index) for index in range(2)]  # type: ignore[arg-type]
    env = gymnasium.make("CartPole-v1")
    policy = ActorCritic(env.observation_space, env.action_space)
    credentials = cluster.credentials(Role.LEARNER)
    with rollfleet.connect(cluster.job.key, policy=policy, address=cluster.url, credentials=credentials) as collector:
        frames, *_ = (batch.numel() for batch in islice(collector, 20))
        for index in SERVERS:
            before = collector.version
            cluster.restart(index)
            list(islice(collector, 20))
            assert collector.version > before
        stats = collector.stats()
        assert stats.missed == 0  # `repeated` may count batches whose acknowledgement a restart cut off
        assert (stats.batches, stats.frames) == (80, 80 * frames)
    for worker in workers:
        worker.join()
        assert worker.error is None


@pytest.mark.slow
def test_jobs_come_and_go_in_a_cluster(cluster: Cluster) -> None:
    async def scene() -> None:
        await provisioned(cluster, cluster.job)
        nats = cluster.operator()
        assert await nats.provisioned() == {JobKey("default", "a")}
        await nats.deprovision(JobKey("default", "a"))
        assert await nats.provisioned() == set()
        await nats.close()
        await provisioned(cluster, job("uid-2"))

    asyncio.run(scene())
    cluster.wait_until_healthy()
