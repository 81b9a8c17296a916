"""A folder to run the `rollfleet` command in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sdk.cli.program import Workplace


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """A folder for a job; after the test nothing that was started in it runs."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    workplace = Workplace(tmp_path, temporary)
    yield workplace
    workplace.end()
