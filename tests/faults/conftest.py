"""Fleets of processes that tests break."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.fleet import Fleet

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the modules in `programs/` importable, here and in the processes of a fleet."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    assert str(PROGRAMS) in sys.path
    return PROGRAMS


@pytest.fixture
def start_fleet(tmp_path: Path, programs: Path) -> Iterator[Callable[..., Fleet]]:
    """Start jobs whose parts can be broken; they end after the test."""
    fleets: list[Fleet] = []

    def start(**options: Any) -> Fleet:
        fleets.append(Fleet(tmp_path, **options))
        return fleets[-1]

    yield start
    for fleet in fleets:
        fleet.close()
