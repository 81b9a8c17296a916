"""The rules of the tree that a reviewer would otherwise have to remember."""

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

PACKAGES = ("sdk/rollfleet_api", "sdk/rollfleet_ui", "sdk/rollfleet", "operator/rollfleet_operator")
CODE = ("sdk", "operator", "crds", "tests", "examples", "benchmarks")
NAMELESS = {"utils", "util", "helpers", "helper", "common", "base", "misc"}
MAX_LINES = 400


def modules(repository: Path, *folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((repository / folder).rglob("*.py"))]
    assert found, f"no Python file in {folders}: the rule would hold for nothing"
    return found


@pytest.fixture
def tracked(repository: Path) -> list[Path]:
    """Every file that is, or would be, committed."""
    if not (repository / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout: there is no list of what is committed")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := repository / name).is_file()]


def test_nothing_shadows_the_standard_librarys_operator(repository: Path) -> None:
    assert not list((repository / "operator").glob("*.py"))
    assert not [path for path in (repository / "tests").rglob("operator") if path.is_dir()]


def test_tests_are_no_package(repository: Path) -> None:
    assert not list((repository / "tests").rglob("__init__.py"))


def test_every_module_is_named_by_a_concept(repository: Path) -> None:
    nameless = [
        path.relative_to(repository)
        for path in modules(repository, *CODE)
        if {part.removesuffix(".py").strip("_") for part in path.relative_to(repository).parts} & NAMELESS
    ]
    assert not nameless, "a function without a home lacks a named concept"


def test_no_python_file_is_longer_than_can_be_read(repository: Path) -> None:
    lines = {
        str(path.relative_to(repository)): len(path.read_text().splitlines()) for path in modules(repository, *CODE)
    }
    assert not {name: count for name, count in lines.items() if count > MAX_LINES}


def test_every_folder_of_a_package_says_what_it_owns(repository: Path) -> None:
    folders = {path.parent for path in modules(repository, *PACKAGES)}
    assert {repository / package for package in PACKAGES} <= folders
    undocumented = []
    for folder in sorted(folders):
        init = folder / "__init__.py"
        if not init.exists() or not ast.get_docstring(ast.parse(init.read_text())):
            undocumented.append(str(folder.relative_to(repository)))
    assert not undocumented, "each needs an __init__.py whose docstring says what it owns and what it must not import"


def test_each_folder_of_the_sdks_tests_is_a_room(repository: Path) -> None:
    rooms = {path.stem for path in (repository / "sdk/rollfleet").iterdir() if path.suffix in ("", ".py")}
    folders = {path.name for path in (repository / "tests/sdk").iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders
    assert folders <= rooms, "a test lies at the path of what it tests"


def test_no_test_module_imports_another(repository: Path) -> None:
    imported = [
        f"{path.relative_to(repository)} imports {node.module}"
        for path in modules(repository, "tests")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        if name.startswith("tests.") and name.rpartition(".")[2].startswith(("test_", "conftest"))
    ]
    assert not imported, "what tests share is a fixture, or a module named for what it is"


def test_contributing_shows_the_rooms_in_the_order_of_the_contract(repository: Path) -> None:
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == ["rollfleet"])
    table = (repository / "CONTRIBUTING.md").read_text().partition("| packages of `sdk/rollfleet` |")[2]
    rows = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()[2:]]
    shown = [{name.strip(" `") for name in row.split(",")} for row in rows]
    assert shown == [{name.strip(" ()") for name in layer.split("|")} for layer in layers if layer != "__main__"]


def test_no_registry_is_named(tracked: list[Path]) -> None:
    # An image or a package is named; where it comes from is the choice of its installer.
    registry = re.compile(
        r"\b(?:pypi|pythonhosted|docker|ghcr|gcr|quay|registry\.k8s|mcr\.microsoft|nvcr)\.(?:org|io|com)\b"
    )
    index = re.compile(r"--(?:extra-)?index-url|--find-links|--trusted-host")
    named = []
    for path in tracked:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        named += [f"{path}: {hit}" for pattern in (registry, index) for hit in pattern.findall(text)]
    # The one file that must spell the options out is this one.
    assert not [hit for hit in named if not hit.startswith(__file__)]
