"""A nats-server in JWT mode, and the operator's program beside it."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.control.api_server.operator_program import OperatorProgram
from tests.control.kubernetes import ABSENT, PROGRAMS, ApiServer, find, serve_definition
from tests.control.wire.jwt_nats import NatsInJwtMode, Site


@pytest.fixture
async def site(nats_server: NatsInJwtMode, tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(nats_server, tmp_path)
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
def operator(server: ApiServer, nats_server: NatsInJwtMode) -> Iterator[subprocess.Popen[bytes]]:
    """The operator's program, for all namespaces."""
    program = OperatorProgram("operator", "", server.kubeconfig(), nats_server, {})
    yield program.process
    program.process.terminate()
    program.process.wait(30)
