"""The CPUs that a process may use, by the scheduler and the files of a cgroup."""

import os
from pathlib import Path

import pytest

from rollfleet.system.cpus import available_cpus


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose scheduler allows eight CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("quota", "cpus"), [("200000", 2), ("150000", 2), ("100000", 1), ("1000", 1), ("6400000", 8), ("max", 8)]
)
def test_quota_of_a_cgroup_bounds_the_scheduler(tmp_path: Path, quota: str, cpus: int) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    assert available_cpus(tmp_path) == cpus


@pytest.mark.parametrize(("text", "cpus"), [("50000 25000", 2), ("", 8), ("nonsense", 8), ("1 2 3", 8)])
def test_file_that_cannot_be_read_bounds_nothing(tmp_path: Path, text: str, cpus: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert available_cpus(tmp_path) == cpus


def test_without_a_cgroup_the_scheduler_decides(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == 8
    assert available_cpus(tmp_path / "absent") == 8


def test_without_a_scheduler_limit_the_machine_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert available_cpus(tmp_path) == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cpus(tmp_path) == 1
