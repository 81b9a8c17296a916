"""An API server with the CRD, and an operator for the tests that need one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.control.api_server.lab import Lab, RunningOperator, quick
from tests.control.api_server.operator_program import OperatorProgram, StartProgram
from tests.control.kubernetes import KEY, TOKEN, ApiServer
from tests.control.pure.nats_in_memory import NatsInMemory
from tests.control.pure.scene import SHARED
from tests.control.wire.job_nats import OrganisationNats
from tests.waiting import wait_until

from rollfleet_operator.nats_access import NatsAccess

START_S = 90.0


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

    def start(
        namespace: str,
        nats: NatsInMemory | None = None,
        *,
        token: str = "",
        access: NatsAccess = SHARED,
        **settings: Any,
    ) -> RunningOperator:
        chosen = quick(**{"namespaces": (namespace,), **settings})
        running = RunningOperator(api_server, nats or NatsInMemory(), chosen, token=token, access=access)
        started.append(running)
        return running

    yield start
    for running in reversed(started):  # as it stops, kopf ends the tasks that began later
        running.stop()


@pytest.fixture
def start_program(own_lab: Lab, api_server: ApiServer, nats_server: OrganisationNats) -> Iterator[StartProgram]:
    """Starts the operator's programs for the namespace of `own_lab`, on a real NATS; returns when a probe succeeds."""
    started: list[OperatorProgram] = []
    own_lab.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": KEY}})

    def start(pod: str, token: str = TOKEN, *, until: str = "/readyz", **settings: str) -> OperatorProgram:
        kubeconfig = api_server.kubeconfig(token)
        started.append(OperatorProgram(pod, own_lab.namespace, kubeconfig, nats_server, settings))
        wait_until(lambda: started[-1].answers(until), START_S)
        return started[-1]

    yield start
    for program in started:
        program.end()


@pytest.fixture
def labs(api_server: ApiServer) -> Iterator[tuple[Lab, Lab]]:
    """Two namespaces, on one NATS."""
    nats = NatsInMemory()
    pair = Lab(api_server, nats), Lab(api_server, nats)
    yield pair
    for lab in pair:
        lab.clear()


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
