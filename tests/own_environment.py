"""A Python environment with packages that the tests' own lacks, or has in another version."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest


def python_with(folder: Path, *packages: str) -> Path:
    """Install packages into a new environment, and return its Python. Of the rest, it has this environment's."""
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-P", "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    if subprocess.run([*pip, "install", "--quiet", *packages], check=False).returncode:
        pytest.skip(f"pip cannot install {', '.join(packages)} here")
    (site_packages,) = folder.glob("lib/*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages") or path.endswith("/sdk")]
    (site_packages / "ours.pth").write_text("\n".join(ours))
    return python
