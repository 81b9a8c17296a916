"""The examples in docstrings run, and every public class and seam shows one."""

import ast
import doctest
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollfleet
import rollfleet_api
import rollfleet_operator
import rollfleet_ui

Documented = ast.Module | ast.ClassDef | ast.FunctionDef
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


def docstrings_with_examples() -> list[str]:
    """The names `module:object` whose docstring has an example; `module:` is the docstring of the module."""
    found = []
    for package in PACKAGES:
        folder = Path(package.__path__[0])
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder.parent).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if ">>> " in (text := file.read_text()):
                found += [f"{module}:{name}" for name in names_with_examples(ast.parse(text))]
    return found


def names_with_examples(node: Documented, name: str = "") -> Iterator[str]:
    """The dotted names inside a module, class or function whose docstring has an example."""
    if ">>> " in (ast.get_docstring(node) or ""):
        yield name
    for child in node.body:
        if isinstance(child, Documented):
            yield from names_with_examples(child, f"{name}.{child.name}" if name else child.name)


@pytest.mark.filterwarnings("ignore:Creating .* is deprecated:DeprecationWarning")  # as TorchRL is imported
@pytest.mark.parametrize("docstring", docstrings_with_examples())
def test_the_examples_of_a_docstring_run(docstring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module_name, _, name = docstring.partition(":")
    module = importlib.import_module(module_name)
    if module_name.startswith("rollfleet.torchrl."):  # a new interpreter takes five seconds to import TorchRL
        forked = functools.partial(rollfleet.Processes, start_method="fork")
        monkeypatch.setattr("rollfleet.torchrl.processes.Processes", forked)
    documented = functools.reduce(inspect.getattr_static, name.split("."), module) if name else module
    (examples,) = doctest.DocTestFinder(recurse=False).find(documented, docstring, module=False, globs=vars(module))
    assert examples.examples
    assert doctest.DocTestRunner(optionflags=FLAGS).run(examples).failed == 0


def test_every_public_class_and_every_seam_shows_an_example() -> None:
    public = {name: getattr(rollfleet, name) for name in rollfleet.__all__}
    shown = public | {seam: pkgutil.resolve_name(seam) for seam in SEAMS}
    classes = {name: each for name, each in shown.items() if isinstance(each, type)}
    assert {name for name, each in classes.items() if ">>> " not in (each.__doc__ or "")} == WITHOUT_EXAMPLE
