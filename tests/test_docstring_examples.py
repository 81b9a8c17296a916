"""The examples in docstrings run, and every public class and seam shows one."""

import doctest
import functools
import importlib
import pkgutil
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
    found: list[Path] = []
    for folder in (Path(package.__path__[0]) for package in PACKAGES):
        found += [file.relative_to(folder.parent) for file in folder.rglob("*.py") if ">>> " in file.read_text()]
    return sorted(".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in found)


@pytest.mark.filterwarnings("ignore:Creating .* is deprecated:DeprecationWarning")  # as TorchRL is imported
@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_modules_docstrings_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name)
    if name.startswith("rollfleet.torchrl."):  # a new interpreter takes five seconds to import TorchRL
        forked = functools.partial(rollfleet.Processes, start_method="fork")
        monkeypatch.setattr("rollfleet.torchrl.processes.Processes", forked)
    documented = [each for each in doctest.DocTestFinder().find(module) if each.examples]
    assert documented
    for each in documented:
        assert doctest.DocTestRunner(optionflags=FLAGS).run(each).failed == 0, each.name


def test_every_public_class_and_every_seam_shows_an_example() -> None:
    public = {name: getattr(rollfleet, name) for name in rollfleet.__all__}
    shown = public | {seam: pkgutil.resolve_name(seam) for seam in SEAMS}
    classes = {name: each for name, each in shown.items() if isinstance(each, type)}
    assert {name for name, each in classes.items() if ">>> " not in (each.__doc__ or "")} == WITHOUT_EXAMPLE
