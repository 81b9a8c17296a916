"""The API reference: it has every public name, and nothing that is not there."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import rollfleet


@pytest.fixture
def shown(repository: Path) -> list[str]:
    return re.findall(r"^::: (\S+)$", (repository / "docs/api.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("package", ["rollfleet", "rollfleet.testing"])
def test_every_public_name_is_in_the_reference(package: str, shown: list[str]) -> None:
    assert {f"{package}.{name}" for name in import_module(package).__all__} <= set(shown)


def test_in_a_checkout_the_page_has_each_name_with_its_source_and_its_first_sentence(repository: Path) -> None:
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(\.\./(\S+)\) \| (.+) \|$", (repository / "docs/api.md").read_text(), re.MULTILINE
    )
    expected = {name: getattr(rollfleet, name) for name in rollfleet.__all__ if not name.startswith("__")}
    assert {name: (repository / file, text) for name, file, text in rows} == {
        name: (Path(inspect.getsourcefile(inspect.unwrap(each)) or ""), (inspect.getdoc(each) or "").splitlines()[0])
        for name, each in expected.items()
    }


def test_every_name_in_the_reference_exists(shown: list[str]) -> None:
    for each in shown:
        if each != "rollfleet.errors":  # a whole module
            module, _, name = each.rpartition(".")
            assert hasattr(import_module(module), name), each


def test_the_arguments_of_the_collector_are_shown_in_their_groups(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    griffe = pytest.importorskip("griffe", reason="pip install '.[release]'")
    monkeypatch.syspath_prepend(repository / "docs")
    extensions = griffe.load_extensions(str(repository / "docs/example_sections.py"))
    loaded = griffe.load("rollfleet", search_paths=[repository / "sdk"], extensions=extensions)
    sections = loaded["collector.Collector.__init__"].docstring.parse("google")
    shown = {each.title: [arg.name for arg in each.value] for each in sections if each.kind.value == "parameters"}
    assert list(shown)[:3] == [None, "How much", "Environments"]
    assert shown[None] == ["env", "policy"]
    assert shown["Worker processes"] == ["workers", "mode", "processes"]
