"""The examples in docstrings run, and every public class and seam shows one."""

import doctest
import importlib
from pathlib import Path

import pytest

import rollfleet
import rollfleet_api
import rollfleet_operator
import rollfleet_ui

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PACKAGES = (rollfleet, rollfleet_api, rollfleet_operator, rollfleet_ui)
WITHOUT_EXAMPLE = {
    "CollectorJob",  # its docstring is the description that `kubectl explain` shows
    "Exploration",  # an enumeration; `exploring` has the example
}
SEAMS = [
    "rollfleet.schemes:WeightScheme",
    "rollfleet.schemes:Whole",
    "rollfleet.schemes:Trained",
    "rollfleet.transports.learner_side:Transport",
    "rollfleet.transports.worker_side:WorkerTransport",
]


def modules_with_examples() -> list[str]:
    """The modules whose source has an example."""
    found = []
    for package in PACKAGES:
        folder = Path(package.__path__[0])
        for file in sorted(folder.rglob("*.py")):
            if ">>> " in file.read_text():
                parts = file.relative_to(folder.parent).with_suffix("").parts
                found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


@pytest.mark.parametrize("module", modules_with_examples())
def test_the_examples_of_a_module_run(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module), optionflags=FLAGS).failed == 0


@pytest.mark.parametrize("name", rollfleet.__all__)
def test_every_public_class_shows_an_example(name: str) -> None:
    public = getattr(rollfleet, name)
    if isinstance(public, type) and name not in WITHOUT_EXAMPLE:
        assert ">>> " in (public.__doc__ or ""), f"rollfleet.{name} has no example"


@pytest.mark.parametrize("seam", SEAMS)
def test_every_seam_shows_an_example(seam: str) -> None:
    module, _, name = seam.partition(":")
    assert ">>> " in (getattr(importlib.import_module(module), name).__doc__ or ""), f"{seam} has no example"
