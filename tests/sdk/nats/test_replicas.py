"""`delivery.replicas`: of a NATS cluster of three servers, any one may be killed."""

import json
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import pytest
import torch
from nats.errors import Error as NatsError
from tests.job_server import Server, WorkerThread

import rollfleet
from rollfleet import ActorCritic, CollectorJob
from rollfleet.errors import JetStreamRefused, Timeout
from rollfleet.nats import presence
from rollfleet.nats.embedded_server import MAX_FILE_BYTES, find_nats_server
from rollfleet.nats.link import Link
from rollfleet.nats.polling import insist
from rollfleet.nats.presence import is_missing
from rollfleet.nats.state_backup import StateBackup
from rollfleet.nats.streams import provision
from rollfleet.rollout.trajectory_ids import split
from rollfleet_api.address import Address
from rollfleet_api.job import API_VERSION, KIND
from rollfleet_api.permissions import Role, permissions
from rollfleet_api.subjects import Subjects
from rollfleet_api.validation import parse_job

if TYPE_CHECKING:
    from tensordict import TensorDict

SUBJECTS = Subjects(namespace="default", job="test")
SPEC: dict[str, Any] = {
    "mode": "Async",
    "workers": 2,
    "env": {"id": "CartPole-v1", "numEnvs": 2},
    "policy": {"mlp": {}},
    "collect": {"framesPerBatch": 16, "totalFrames": 1600},
    "weights": {"maxLag": 1000},  # no batch is too old
    "delivery": {"replicas": 3, "maxBytes": "16Mi", "maxBatchesAhead": 2},
}
START_TIMEOUT_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Cluster:
    """Three NATS servers; every role of the job may connect to each. It gives links as `Server` does."""

    subjects = SUBJECTS

    def __init__(self, folder: Path) -> None:
        self._links = ExitStack()
        self._ports = [(free_port(), free_port()) for _ in range(3)]
        self._folders = [folder / f"nats-{index}" for index in range(3)]
        self.processes: list[subprocess.Popen[bytes]] = []
        for index, where in enumerate(self._folders):
            where.mkdir()
            (where / "nats.json").write_text(json.dumps(self._configuration(index)))
            self.processes.append(self._start(index))
        self._wait_for_a_leader()

    def url(self, role: Role | None) -> str:
        user = role or "admin"
        return ",".join(f"nats://{user}:{user}@127.0.0.1:{port}" for port, _ in self._ports)

    def link(self, role: Role | None = None) -> Link:
        link = Link(Address(url=self.url(role), job=SUBJECTS.key), role=role)
        self._links.callback(link.close)
        return link

    def leader_of(self, stream: str) -> int:
        """Which server leads a stream."""
        link = self.link()
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            answer = link.call(link.client.request(f"$JS.API.STREAM.INFO.{stream}", timeout=5))
            if leader := json.loads(answer.data).get("cluster", {}).get("leader"):
                return int(leader.removeprefix("nats-"))
            assert time.monotonic() < until, f"{stream} has no leader"

    def kill(self, index: int) -> None:
        self.processes[index].send_signal(signal.SIGKILL)
        self.processes[index].wait()

    def start_again(self, index: int) -> None:
        self.processes[index] = self._start(index)

    def stop(self) -> None:
        self._links.close()
        for process in self.processes:
            process.kill()
            process.wait()

    def _start(self, index: int) -> "subprocess.Popen[bytes]":
        where = self._folders[index]
        with (where / "log").open("a") as log:
            return subprocess.Popen([str(find_nats_server()), "-c", str(where / "nats.json")], stderr=log)

    def _configuration(self, index: int) -> dict[str, object]:
        users: list[dict[str, object]] = [{"user": "admin", "password": "admin"}]
        for role in Role:
            allowed = permissions(SUBJECTS, role)
            may = {"publish": allowed.publish, "subscribe": allowed.subscribe}
            users.append({"user": role, "password": role, "permissions": may})
        port, of_cluster = self._ports[index]
        routes = [f"nats://127.0.0.1:{other}" for _, other in self._ports]
        return {
            "server_name": f"nats-{index}",
            "listen": f"127.0.0.1:{port}",
            "jetstream": {"store_dir": str(self._folders[index] / "jetstream"), "max_file_store": MAX_FILE_BYTES},
            "cluster": {"name": "three", "listen": f"127.0.0.1:{of_cluster}", "routes": routes},
            "authorization": {"users": users},
        }

    def _wait_for_a_leader(self) -> None:
        link = self.link()
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                answer = json.loads(link.call(link.client.request("$JS.API.INFO", timeout=1)).data)
                if "error" not in answer:
                    return
            except (NatsError, Timeout):
                pass  # they look for each other
            assert time.monotonic() < until, "the servers do not find each other"
            time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    yield running
    running.stop()


def job_of(**spec: Any) -> CollectorJob:
    metadata = {"name": SUBJECTS.job, "namespace": SUBJECTS.namespace}
    return parse_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": SPEC | spec})


def provisioned(cluster: Cluster, **spec: Any) -> CollectorJob:
    link, job = cluster.link(), job_of(**spec)
    until = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            link.call(provision(link, job), timeout_s=10)
        except JetStreamRefused:  # the servers do not know each other's free space yet
            time.sleep(0.1)
        else:
            return job
        assert time.monotonic() < until, "the servers do not take the job"


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["batches", "state"])
def test_a_killed_server_of_a_cluster_costs_no_batch(cluster: Cluster, whose: str) -> None:
    job = provisioned(cluster)
    workers = [WorkerThread(cluster, job, index) for index in range(2)]  # type: ignore[arg-type]
    env = gymnasium.make("CartPole-v1")
    policy = ActorCritic(env.observation_space, env.action_space)
    rows: dict[int, list[TensorDict]] = defaultdict(list)
    with rollfleet.connect(SUBJECTS.key, policy=policy, address=cluster.url(Role.LEARNER)) as collector:

        def collect(batches: int | None) -> None:
            for batch in islice(collector, batches):
                rows[split(int(batch["collector", "traj_ids"][0, 0]))[0]].append(batch)

        collect(20)
        stream = SUBJECTS.batches_stream if whose == "batches" else SUBJECTS.state_stream
        victim = cluster.leader_of(stream)
        cluster.kill(victim)
        before = collector.version
        collect(40)
        assert collector.version > before
        cluster.start_again(victim)
        collect(None)  # to the end
        assert collector.stats().missed == 0
    for worker in workers:
        worker.join()
    assert set(rows) == {0, 1}
    for batches in rows.values():  # frame follows frame
        whole: Any = torch.cat(batches, dim=1)
        continuing = ~whole["next", "done"][:, :-1, 0]
        assert torch.equal(whole["next", "observation"][:, :-1][continuing], whole["observation"][:, 1:][continuing])


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["File", "Memory"])
def test_a_restart_of_the_one_server_with_a_jobs_streams_ends_nobody(
    cluster: Cluster, storage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(presence, "DELETED_AFTER_S", 0.5)
    unanswered: list[None] = []

    async def asked(link: Link) -> bool:
        unanswered.append(None)
        return await is_missing(link)

    monkeypatch.setattr(presence, "is_missing", asked)
    job = provisioned(
        cluster, delivery=SPEC["delivery"] | {"replicas": 1, "storage": storage}, collect={"framesPerBatch": 16}
    )
    owner = cluster.link()
    state_backup = StateBackup(owner)
    workers = [WorkerThread(cluster, job, index) for index in range(2)]  # type: ignore[arg-type]
    env = gymnasium.make("CartPole-v1")
    policy = ActorCritic(env.observation_space, env.action_space)
    with rollfleet.connect(SUBJECTS.key, policy=policy, address=cluster.url(Role.LEARNER)) as collector:
        list(islice(collector, 10))
        victims = {cluster.leader_of(stream) for stream in (SUBJECTS.state_stream, SUBJECTS.batches_stream)}
        for victim in victims:
            cluster.kill(victim)
        until = time.monotonic() + START_TIMEOUT_S
        while len(unanswered) < 8 and len(victims) == 1:  # several looks of each worker: no responder is no proof
            assert time.monotonic() < until
            time.sleep(0.05)
        for victim in victims:
            cluster.start_again(victim)
        if storage == "Memory":  # as the operator does when NATS was away
            owner.call(insist(lambda: provision(owner, job, kept=state_backup.messages())), timeout_s=START_TIMEOUT_S)
        list(islice(collector, 10))
    for worker in workers:
        worker.join()
        assert worker.error is None
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) < 20


def test_more_replicas_than_servers_are_refused_with_advice(server: Server) -> None:
    link = server.link()
    with pytest.raises(JetStreamRefused, match=r"`delivery.replicas: 3` needs a NATS cluster of that many servers"):
        link.call(provision(link, job_of()), timeout_s=10)
