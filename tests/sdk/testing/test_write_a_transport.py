"""The transport of docs/write-a-transport.md passes the shipped suite, and collects for a collector."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests import pages


@pytest.fixture
def blocks(repository: Path) -> list[str]:
    text = (repository / "docs/write-a-transport.md").read_text()
    found = pages.blocks(text, "python")
    assert len(found) == 3
    return found


@pytest.mark.slow
def test_transport_of_the_page_passes_the_suite(blocks: list[str], tmp_path: Path) -> None:
    transport, _, suite = blocks
    (tmp_path / "test_threads.py").write_text(transport + suite)
    options = ["-q", "-pno:cacheprovider", "-pno:nbmake", "-pno:randomly", "-pno:xdist", "-pno:hypothesispytest"]
    command = [sys.executable, "-P", "-m", "pytest", *options, "test_threads.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "18 passed" in done.stdout


def test_collector_runs_over_the_transport_of_the_page(blocks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    transport, example, _ = blocks
    exec(transport + example, {"__name__": "__main__"})  # the repository's own page
    assert capsys.readouterr().out == "torch.Size([2, 4])\n" * 3
