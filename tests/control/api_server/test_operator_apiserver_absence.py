"""Operator programs on a real API server, and a running job on a real NATS: it survives none, and two, of them."""

import base64
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import gymnasium
import pytest
from tests.control.api_server.lab import Lab
from tests.control.api_server.operator_program import StartProgram
from tests.control.wire.job_nats import OrganisationNats
from tests.job_server import WorkerThread
from tests.waiting import wait_until

import rollfleet
from rollfleet import ActorCritic
from rollfleet.nats.link import Link
from rollfleet_api.address import CREDENTIALS_FILE, Address
from rollfleet_api.job import KIND
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job
from rollfleet_operator import names

AWAY_S = int(os.environ.get("ROLLFLEET_AWAY_S", "40"))  # `make chaos`: five minutes
TOGETHER_S = max(20.0, AWAY_S / 5)  # two operators: each looks at the job every 5 s
START_S = 60.0

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300 + 2 * AWAY_S)]


class Pods:
    """The pods of a job, as threads of this process; its Secrets are files, as the kubelet mounts them.

    Attributes:
        batches: The number of batches that the learner was handed.
    """

    def __init__(self, lab: Lab, nats: OrganisationNats, folder: Path) -> None:
        self._lab, self._nats, self._folder, self._links = lab, nats, folder, list[Link]()
        for role in (Role.WORKER, Role.LEARNER):
            secret = wait_until(partial(self._lab.get, "Secret", names.secret("cartpole", role)))
            self._file(role).write_bytes(base64.b64decode(secret["data"][CREDENTIALS_FILE]))
        self._job = parse_job(lab.get(KIND, "cartpole"))
        self.workers = [WorkerThread(self, self._job, index) for index in range(2)]  # type: ignore[arg-type]
        self.batches, self._over = 0, threading.Event()

    def link(self, role: Role) -> Link:
        address = Address(url=self._nats.url, job=self._job.key, credentials=self._file(role))
        self._links.append(Link(address, role=role))
        return self._links[-1]

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Take batches and send weights all the time; check at the end that none was lost."""
        env = gymnasium.make("CartPole-v1")
        policy = ActorCritic(env.observation_space, env.action_space)
        mounted = self._file(Role.LEARNER)
        with rollfleet.connect(self._job.key, policy=policy, address=self._nats.url, credentials=mounted) as collector:
            thread = threading.Thread(target=self._learn, args=(collector,))
            thread.start()
            try:
                yield
            finally:
                self._over.set()
                thread.join(START_S)
            assert collector.stats().missed == 0

    def collects(self) -> None:
        more = self.batches + 10
        wait_until(lambda: self.batches >= more)

    def end(self) -> None:
        for link in self._links:
            link.close()

    def _learn(self, collector: rollfleet.Collector) -> None:
        for _ in collector:
            self.batches += 1
            if self._over.is_set():
                return

    def _file(self, role: Role) -> Path:
        return self._folder / f"{role}.creds"


@pytest.fixture
def start(start_program: StartProgram) -> StartProgram:
    """Starts operators that do not know of each other; returns when one is ready."""
    return partial(start_program, ROLLFLEET_WORKER_IMAGE="worker:1")


@pytest.fixture
def pods(own_lab: Lab, nats_server: OrganisationNats, tmp_path: Path) -> Iterator[Callable[[], Pods]]:
    """Applies a job, and returns its pods."""
    created: list[Pods] = []

    def create() -> Pods:
        own_lab.apply(
            mode="Async",
            env={"id": "CartPole-v1", "numEnvs": 2},
            weights={"maxLag": 1_000_000},
        )
        own_lab.run()
        created.append(Pods(own_lab, nats_server, tmp_path))
        return created[-1]

    yield create
    for each in created:
        each.end()


def test_a_job_goes_on_without_an_operator_and_with_the_next(
    own_lab: Lab, nats_server: OrganisationNats, start: StartProgram, pods: Callable[[], Pods]
) -> None:
    first, job = start("first"), pods()
    run = own_lab.run()
    with job.learning():
        job.collects()
        first.end()
        until = time.monotonic() + AWAY_S
        while time.monotonic() < until:
            job.collects()
        start("second")
        nats_server.kill()
        nats_server.start_again()
        job.collects()
        assert [worker.error for worker in job.workers] == [None, None]
        wait_until(lambda: own_lab.condition("Degraded")["status"] == "False")  # the status may lag behind the batches
    assert own_lab.run()["metadata"]["uid"] == run["metadata"]["uid"]


def test_a_job_survives_two_operators_that_work_at_the_same_time(
    own_lab: Lab, start: StartProgram, pods: Callable[[], Pods]
) -> None:
    first = start("first")
    second = start("second")
    job = pods()
    run = own_lab.run()
    with job.learning():
        until = time.monotonic() + TOGETHER_S
        while time.monotonic() < until:
            job.collects()
        own_lab.patch(KIND, "cartpole", {"spec": {"replicas": 3}}, "scale")
        wait_until(lambda: own_lab.run()["spec"]["parallelism"] == 3)
        second.end()
        job.collects()
        assert [worker.error for worker in job.workers] == [None, None]
        wait_until(lambda: own_lab.condition("Degraded")["status"] == "False")  # the status may lag behind the batches
    assert own_lab.run()["metadata"]["uid"] == run["metadata"]["uid"]
    assert first.process.poll() is None
