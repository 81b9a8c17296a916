"""Servers of jobs on this machine, and the operator's program beside a server that all jobs share."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.control.api_server.operator_program import OperatorProgram
from tests.control.chart.helm import find
from tests.control.kubernetes import ABSENT, PROGRAMS, ApiServer, serve_definition
from tests.control.wire.job_nats import OrganisationNats, Site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    yield site
    await site.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server of the test's own: thousands of objects would be in the way of others."""
    if not all(find(program) for program in PROGRAMS):
        pytest.skip(ABSENT)
    folder = tmp_path / "api-server"
    folder.mkdir()
    server = ApiServer(folder)
    serve_definition(server)
    yield server
    server.stop()


@pytest.fixture
def operator(server: ApiServer, nats_server: OrganisationNats) -> Iterator[subprocess.Popen[bytes]]:
    """The operator's program, for all namespaces."""
    program = OperatorProgram("operator", "", server.kubeconfig(), nats_server, {})
    yield program.process
    program.process.terminate()
    program.process.wait(30)
