"""The page about TorchRL's environments: its program runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path


def test_the_program_of_the_page_runs_without_a_guard(repository: Path, tmp_path: Path) -> None:
    page = (repository / "docs" / "torchrl-environments.md").read_text()
    program = tmp_path / "program.py"
    program.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)))
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(" ")[0] for line in done.stdout.splitlines()] == ["(8, 32)"] * 2
