"""What tests of several rooms share: processes that a test started, and collectors on each transport."""

import multiprocessing
import multiprocessing.forkserver
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.job_server import Server
from tests.running import alive
from tests.sdk.places import Collect, CollectInProcesses

import rollfleet
from rollfleet import Collector, Jobs
from rollfleet_api.permissions import Role

if TYPE_CHECKING:
    from tests.control.kubernetes import ApiServer
    from tests.sdk.cluster.namespace import Namespace


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
def kubeconfig(api_server: "ApiServer") -> Path:
    return api_server.kubeconfig()


@pytest.fixture
def namespace(kubeconfig: Path) -> "Iterator[Namespace]":
    """A namespace of the test's own, on a real API server; no operator and no kubelet run."""
    from tests.sdk.cluster.namespace import Namespace

    namespace = Namespace(kubeconfig)
    yield namespace
    namespace.clear()


@pytest.fixture
def jobs(kubeconfig: Path, namespace: "Namespace") -> Jobs:
    return Jobs(kubeconfig=kubeconfig, namespace=namespace.name)


@pytest.fixture
def started() -> Callable[..., list[psutil.Process]]:
    """Gives the living processes that the test has started by now; the session's own servers are not among them."""
    if multiprocessing.get_start_method() == "forkserver":  # Python 3.14's default: a server of the session
        multiprocessing.forkserver.ensure_running()
    before = set(psutil.Process().children(recursive=True))

    def started(*, recursive: bool = False) -> list[psutil.Process]:
        children = set(psutil.Process().children(recursive=recursive)) - before
        return sorted((each for each in children if alive(each.pid)), key=lambda each: each.pid)

    return started


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A nats-server for the collectors of a module, one after another."""
    server = Server(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


def _place(request: pytest.FixtureRequest, stack: ExitStack) -> Collect:
    if request.param == "nats":
        from tests.sdk.over_nats import CollectOverNats

        return CollectOverNats(stack, request.getfixturevalue("shared_server"))
    return CollectInProcesses(stack) if request.param == "processes" else Collect(stack)


@pytest.fixture(params=["here", "processes", "nats"])
def collect(request: pytest.FixtureRequest) -> Iterator[Collect]:
    """Makes collectors on each transport in turn."""
    with ExitStack() as stack:
        yield _place(request, stack)


@pytest.fixture(params=["processes", "nats"])
def apart(request: pytest.FixtureRequest) -> Iterator[Collect]:
    """Makes collectors with two workers outside of the learner, on each such transport in turn."""
    with ExitStack() as stack:
        yield _place(request, stack)


@pytest.fixture
def here() -> Iterator[Callable[..., Collector]]:
    with ExitStack() as stack:
        yield Collect(stack)


@pytest.fixture
def processes() -> Iterator[Collect]:
    with ExitStack() as stack:
        yield CollectInProcesses(stack)


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns after some microseconds: what needs a lock fails soon without it."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)
