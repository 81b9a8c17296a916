"""An API server with the CRD, and an operator for the tests that need one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.control.api_server.lab import Lab, RunningOperator, quick
from tests.control.kubernetes import ApiServer
from tests.control.pure.nats_in_memory import NatsInMemory


@pytest.fixture(scope="module")  # some modules start their own
def operator(api_server: ApiServer) -> Iterator[RunningOperator]:
    """One operator for all namespaces, on NATS in memory."""
    running = RunningOperator(api_server, NatsInMemory(), quick())
    yield running
    running.stop()


@pytest.fixture
def start_operator(api_server: ApiServer) -> Iterator[Callable[..., RunningOperator]]:
    """Starts operators of the test's own, for one namespace each (`quick` has their other settings)."""
    started: list[RunningOperator] = []

    def start(namespace: str, nats: NatsInMemory | None = None, *, token: str = "", **settings: Any) -> RunningOperator:
        running = RunningOperator(
            api_server, nats or NatsInMemory(), quick(**{"namespaces": (namespace,), **settings}), token=token
        )
        started.append(running)
        return running

    yield start
    for running in started:
        running.stop()


@pytest.fixture
def own_lab(api_server: ApiServer) -> Iterator[Lab]:
    """A namespace for operators that the test starts, with a NATS of its own. Not in a module that asks for `lab`."""
    lab = Lab(api_server, NatsInMemory())
    yield lab
    lab.clear()


@pytest.fixture
def lab(api_server: ApiServer, operator: RunningOperator) -> Iterator[Lab]:
    """A namespace that the operator watches."""
    lab = Lab(api_server, operator.nats)
    yield lab
    lab.clear()
