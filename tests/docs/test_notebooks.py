"""The notebooks of docs have no outputs in the repository, and the one that needs no cluster runs."""

import json
import re
from pathlib import Path

import pytest
from tests.notebooks import shown_by


def test_notebooks_are_committed_without_outputs(repository: Path) -> None:
    notebooks = {path.name: json.loads(path.read_text()) for path in (repository / "docs/notebooks").iterdir()}
    assert set(notebooks) == {"cluster.ipynb", "local.ipynb"}
    for name, notebook in notebooks.items():
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert code
        assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == [], name


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_local_notebook_trains_and_draws_its_curve(repository: Path, tmp_path: Path) -> None:
    shown = shown_by(repository / "docs/notebooks/local.ipynb", tmp_path)
    assert "action: Tensor(shape=torch.Size([8, 128])" in shown
    returns = re.search(r"mean return (\d+) after 2,048 frames, (\d+) after 40,960", shown)
    assert returns, shown
    assert int(returns[2]) > 5 * int(returns[1])
    assert "Figure" in shown
