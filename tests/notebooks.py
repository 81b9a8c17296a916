"""Notebooks of the documentation, run by nbmake."""

import json
import os
import shutil
import sys
from pathlib import Path

from tests.running import output_of


def shown_by(notebook: Path, folder: Path) -> str:
    """Run a copy of a notebook in a folder. Return the texts that its cells have shown."""
    copy = Path(shutil.copy(notebook, folder))
    command = [sys.executable, "-m", "pytest", "--nbmake", "--overwrite", "-p", "no:asyncio", copy.name]
    # An import of envpool in the process of the tests names another backend, which draws nothing in a notebook.
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    output_of(*command, cwd=folder, env=environment)
    outputs = [each for cell in json.loads(copy.read_text())["cells"] for each in cell.get("outputs", ())]
    return "".join("".join(each.get("text") or each.get("data", {}).get("text/plain", "")) for each in outputs)
