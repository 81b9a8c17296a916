"""A folder in which tests run the `rollfleet` command."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sdk.cli.program import Workplace


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """Provide a folder for a job; after the test, end every process that was started in it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    workplace = Workplace(tmp_path, temporary)
    yield workplace
    workplace.end()
