"""What `make` says to someone who has only just cloned the repository."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str, repository: Path) -> subprocess.CompletedProcess[str]:
    # The arguments of the `make test` around this test are not for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=repository, env=environment, capture_output=True, text=True)


def test_make_alone_lists_what_there_is(repository: Path) -> None:
    done = make(repository=repository)
    assert done.returncode == 0
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    assert {"demo", "test", "lint", "format", "crd", "clean"} <= listed


def test_a_python_that_is_too_old_is_refused_with_what_to_do(repository: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    done = make("install", f"VENV={venv}", "PYTHON=false", repository=repository)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert "PYTHON=/path/to/python" in done.stderr
    assert not venv.exists()


def test_the_demo_installs_neither_linters_nor_a_simulator(repository: Path, tmp_path: Path) -> None:
    done = make("--dry-run", "demo", f"VENV={tmp_path / 'venv'}", repository=repository)
    (install,) = [line for line in done.stdout.splitlines() if "pip" in line and " install " in line]
    assert "'.[local]'" in install
    assert "constraints.txt" in install


def test_after_the_tests_the_demo_installs_nothing(repository: Path, tmp_path: Path) -> None:
    done = make("--dry-run", "install", f"VENV={tmp_path}", repository=repository)
    stamped = {word for line in done.stdout.splitlines() if line.startswith("touch ") for word in line.split()[1:]}
    for stamp in stamped:
        Path(stamp).touch()
    done = make("--dry-run", "demo", f"VENV={tmp_path}", repository=repository)
    assert done.returncode == 0
    assert " install " not in done.stdout


def test_nothing_runs_with_the_repository_on_its_path(repository: Path) -> None:
    # `python -m` looks into the current folder first, where `operator` is a folder of ours: -P does not.
    started = re.findall(r"python[^\n]* -m ", (repository / "Makefile").read_text())
    assert started
    assert not [command for command in started if " -P " not in command]
