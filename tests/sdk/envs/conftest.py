"""Environment servers for tests: programs of this machine, which vectors reach as those of other hosts."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.sdk.envs.hosts import Host, write_certificate


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("certificate") / "certificate.pem")


@pytest.fixture(scope="session")
def addresses(certificate: Path) -> Iterator[list[str]]:
    """The addresses of two servers. Tests end none of them."""
    with ExitStack() as stack:
        yield [stack.enter_context(Host(certificate)).address for _ in range(2)]
