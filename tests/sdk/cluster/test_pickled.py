"""Callables of a program that travel as bytes in a job's source."""

import subprocess
import sys
from pathlib import Path

import pytest

from rollfleet.cluster import pickled_module
from rollfleet.cluster.pickled import Pickled
from rollfleet.cluster.sources import Sources

PROGRAM = """
import sys
from pathlib import Path
import beside
from rollfleet.cluster.pickled import Pickled
from rollfleet.cluster.sources import Sources

added = 2
sources = Sources()
named = Pickled(lambda: beside.three() + added).named(sources)
for path, text in sources.files.items():
    Path(sys.argv[1], path).write_text(text)
print(named.kwargs["module"])
"""


def test_a_lambda_and_the_module_beside_the_program_reach_a_worker(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "beside.py").write_text("def three():\n    return 3\n")
    (here / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(here / "program.py"), str(there)]
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    call = f"from rollfleet.cluster.pickled_module import call; print(call(module={name!r}))"
    done = subprocess.run([sys.executable, "-c", call], cwd=there, capture_output=True, text=True, check=False)
    assert done.stdout == "5\n", done.stderr


def test_another_version_of_python_is_an_error_that_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources()
    named = Pickled(dict).named(sources)
    ((path, text),) = sources.files.items()
    _, _, rest = text.partition("\n")
    (tmp_path / path).write_text(f"PYTHON = (3, 1)\n{rest}")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"runs on Python 3\.1, and this worker's image has 3\.[0-9]+:"):
        pickled_module.call(**named.kwargs)
