"""The API reference: it has every public name, and nothing that is not there."""

import re
from importlib import import_module
from pathlib import Path

import pytest


@pytest.fixture
def shown(repository: Path) -> list[str]:
    return re.findall(r"^::: (\S+)$", (repository / "docs/api.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("package", ["rollfleet", "rollfleet.testing"])
def test_every_public_name_is_in_the_reference(package: str, shown: list[str]) -> None:
    assert {f"{package}.{name}" for name in import_module(package).__all__} <= set(shown)


def test_every_name_in_the_reference_exists(shown: list[str]) -> None:
    for each in shown:
        if each != "rollfleet.errors":  # a whole module
            module, _, name = each.rpartition(".")
            assert hasattr(import_module(module), name), each
