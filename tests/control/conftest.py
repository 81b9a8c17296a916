"""An API server, started once for all tests that need one."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.control.kubernetes import ABSENT, PROGRAMS, ApiServer, find, serve_definition, wait_for


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """The API server, with our CRD."""
    if not all(find(program) for program in PROGRAMS) or not shutil.which("openssl"):
        pytest.skip(ABSENT)
    server = ApiServer(tmp_path_factory.mktemp("api-server"))
    serve_definition(server)
    yield server
    server.stop()


@pytest.fixture(name="wait_for")
def waiting() -> Callable[..., Any]:
    """Waits; see `wait_for`."""
    return wait_for
