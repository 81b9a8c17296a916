"""The page about TorchRL's environments: its program runs as it stands."""

from pathlib import Path

import pytest
from tests.pages import blocks, shell


@pytest.mark.slow
def test_the_program_of_the_page_runs_without_a_guard(repository: Path, tmp_path: Path) -> None:
    page = (repository / "docs" / "torchrl-environments.md").read_text()
    (tmp_path / "program.py").write_text("\n".join(blocks(page, "python")))
    lines = shell("python program.py", tmp_path).splitlines()
    assert [line.rpartition(" ")[0] for line in lines] == ["(8, 32)"] * 2
