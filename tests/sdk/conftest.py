"""A real nats-server for each test that asks for one, with the users and permissions of the job `default/test`."""

import asyncio
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import rollfleet
from rollfleet import Collector
from rollfleet.joining.link import Link
from rollfleet.joining.nats_server import NatsServer, start_nats_server
from rollfleet.joining.provision import provision
from rollfleet.learning.workload import Workload
from rollfleet.transports.worker_port import WorkerPort
from rollfleet.worker import Worker
from rollfleet_api.environment import Address
from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.messages import WorkerState
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Subjects
from rollfleet_api.validation import parse_job

STOP_GRACE_S = 2.0


class Server:
    """What the fixture `server` gives. Name its type by `if TYPE_CHECKING: from tests.sdk.conftest import Server`.

    Attributes:
        subjects: Of `default/test`, the one job that its users may touch.
        folder: Where the server's files are.
    """

    def __init__(self, folder: Path) -> None:
        self.subjects = Subjects(namespace="default", job="test")
        self.folder = folder
        self._loop = asyncio.Runner()  # the server's process needs its loop to be there, not to run
        self._links = ExitStack()
        self._running: NatsServer = self._loop.run(start_nats_server(self.subjects, folder))

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._running.child.pid

    @property
    def host_port(self) -> str:
        """`127.0.0.1:<port>`."""
        return self._running.host_port

    def url(self, role: Role | None = None) -> str:
        """Where a role connects; None: whoever runs the job, who may do everything."""
        return self._running.url(role)

    def address(self, role: Role | None = None) -> Address:
        """The same, as a process is told it."""
        return Address(url=self.url(role), job=self.subjects.key)

    def link(self, role: Role | None = None) -> Link:
        """A connection, closed after the test."""
        link = Link(self.address(role), role=role)
        self._links.callback(link.close)
        return link

    def provision(self, **spec: object) -> CollectorJob:
        """Make the streams of a small job `default/test` whose spec says also this, in camelCase."""
        smallest = {"env": {"id": "CartPole-v1"}, "policy": {"mlp": {}}, "collect": {"framesPerBatch": 64}}
        metadata = {"name": self.subjects.job, "namespace": self.subjects.namespace}
        job = parse_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": smallest | spec})
        link = Link(self.address(), role=None)
        try:
            link.call(provision(link, job), timeout_s=10)
        finally:
            link.close()
        return job

    def kill(self) -> None:
        """SIGKILL, and wait until the server is gone."""
        self._running.child.kill(signal.SIGKILL)
        self._loop.run(self._running.child.wait())

    def start_again(self) -> None:
        """After `kill`: on the same port, with the same users and what was stored."""
        self._loop.run(self._running.start_again())

    def stop(self) -> None:
        """Close every link, stop the server."""
        try:
            self._links.close()
        finally:
            self._loop.run(self._running.child.stop(STOP_GRACE_S))
            self._loop.close()


class WorkerThread:
    """A worker of a job in a thread: the program's own loop, without the seconds that a process takes to start.

    Attributes:
        port: Its end of the wire.
        error: What ended it; None: nothing did, or it is still going.
    """

    def __init__(self, server: Server, job: CollectorJob, index: int) -> None:
        self.port = WorkerPort(server.link(Role.WORKER), index)
        self.error: BaseException | None = None
        self._job, self._index = job, index
        self._worker: Worker | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for(self, state: WorkerState, timeout_s: float = 20.0) -> None:
        """Wait until its heartbeat says this."""
        until = time.monotonic() + timeout_s
        while self.port.status is None or self.port.status.state is not state:
            assert time.monotonic() < until, f"the worker is not {state} but {self.port.status}"
            time.sleep(0.01)

    def leave(self) -> None:
        """What SIGTERM does in the program; once it has begun to collect."""
        assert self._worker is not None
        self._worker.leave()

    def join(self, timeout_s: float = 20.0) -> None:
        """Wait until it has left."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the worker did not leave: {self.port.status}, {self.port.control}"

    def _run(self) -> None:
        try:
            worker = self._worker = Worker(self.port, Workload.of(self._job), self._index)
            try:
                worker.run()
            finally:
                worker.close()
        except BaseException as error:
            self.error = error


@pytest.fixture
def start_worker(server: Server) -> Callable[[CollectorJob, int], WorkerThread]:
    """Starts a worker of a provisioned job; it ends at the latest when the test's server does."""
    return partial(WorkerThread, server)


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., Collector]]:
    """`rollfleet.connect` to the job `default/test`; what was not shut down is let go after the test."""
    with ExitStack() as stack:

        def connect(policy: object = None, **more: Any) -> Collector:
            url = server.url(Role.LEARNER)
            collector = rollfleet.connect(server.subjects.key, policy, address=url, timeout_s=10, **more)
            stack.callback(collector.detach)
            return collector

        yield connect


@pytest.fixture
def started() -> Callable[..., list[psutil.Process]]:
    """Gives the living processes that the test has started by now; the session's own servers are not among them."""
    before = set(psutil.Process().children(recursive=True))

    def started(*, recursive: bool = False) -> list[psutil.Process]:
        children = set(psutil.Process().children(recursive=recursive)) - before
        return sorted(filter(_lives, children), key=lambda each: each.pid)

    return started


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # since it was listed
        return False


AllocatesAtMost = Callable[[int], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def allocates_at_most() -> AllocatesAtMost:
    """A context in which Python may allocate so many bytes at once, and no more."""

    @contextmanager
    def allocates_at_most(nbytes: int) -> Iterator[None]:
        tracemalloc.start()
        try:
            yield
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= nbytes

    return allocates_at_most


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A running nats-server; stopped after the test."""
    server = Server(tmp_path)
    yield server
    server.stop()
