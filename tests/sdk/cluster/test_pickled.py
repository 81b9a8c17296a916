"""Callables of a program that travel as bytes in a job's source."""

import sys
from pathlib import Path

import pytest
from tests.running import output_of

from rollfleet.cluster.pickled_module import loaded

PROGRAM = """
import sys
from functools import partial
from pathlib import Path
import beside
from rollfleet.cluster.sources import Sources

added = 2
class Main:
    def __init__(self, more=0):
        self.number = beside.three() + added + more
def local():
    return lambda more=0: added + more
sources = Sources()
for value in (Main, lambda more=0: Main(more).number, local(), partial(Main, more=3)):
    named = sources.name(value, "env")
    print(named.entrypoint, named.kwargs)
for path, text in sources.files.items():
    Path(sys.argv[1], path).write_text(text)
"""


@pytest.mark.parametrize("interactive", [False, True])
def test_what_no_module_defines_reaches_a_worker_and_the_module_beside_the_program_too(
    interactive: bool, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "beside.py").write_text("def three():\n    return 3\n")
    command = ["-c", PROGRAM]  # as at Python's prompt: no file has its source
    if not interactive:
        (here / "program.py").write_text(PROGRAM)
        command = ["program.py"]
    lines = [line.partition(" ") for line in output_of(sys.executable, *command, there, cwd=here).splitlines()]
    made = ", ".join(f"load({name!r})(**{kwargs})" for name, _, kwargs in lines)
    code = f"from rollfleet.system.entrypoints import load; print(*(getattr(x, 'number', x) for x in ({made})))"
    assert output_of(sys.executable, "-c", code, cwd=there) == "5 5 2 8\n"


def test_another_version_of_python_is_an_error_that_names_both() -> None:
    with pytest.raises(RuntimeError, match=r"runs on Python 3\.1, and this worker's image has 3\.[0-9]+:"):
        loaded((3, 1), "")
