"""A nats-server in JWT mode, and the operator's program beside it."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.control.kubernetes import ABSENT, PROGRAMS, ApiServer, find, serve_definition
from tests.control.wire.jwt_nats import NatsInJwtMode, Site

from rollfleet_operator.nats.trust import SEED_FILE


@pytest.fixture
async def site(nats_server: NatsInJwtMode, tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(nats_server, tmp_path)
    yield site
    await site.nats.close()


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
def operator(server: ApiServer, nats_server: NatsInJwtMode, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / SEED_FILE).write_text(nats_server.keys.operator.seed)
    variables = {
        "KUBECONFIG": str(server.kubeconfig()),
        "ROLLFLEET_NATS_URL": nats_server.url,
        "ROLLFLEET_NATS_KEYS": str(tmp_path),
        "ROLLFLEET_PORT": "0",
    }
    with (tmp_path / "operator.log").open("wb") as log:
        command = [sys.executable, "-P", "-m", "rollfleet_operator"]
        process = subprocess.Popen(command, env=os.environ | variables, stderr=log, stdin=subprocess.DEVNULL)
    yield process
    process.terminate()
    process.wait(30)
