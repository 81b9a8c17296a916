"""The transport of docs/write-a-transport.md passes the shipped suite, and collects for a collector."""

import sys
from pathlib import Path

import pytest
from tests import pages
from tests.running import output_of


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
    command = (sys.executable, "-P", "-m", "pytest", *options, "test_threads.py")
    assert "18 passed" in output_of(*command, cwd=tmp_path, timeout=100)


def test_collector_runs_over_the_transport_of_the_page(blocks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    transport, example, _ = blocks
    exec(transport + example, {"__name__": "__main__"})  # the repository's own page
    assert capsys.readouterr().out == "torch.Size([2, 4])\n" * 3
