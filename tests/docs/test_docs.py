"""The pages of docs are correct: their jobs are valid, their links lead to files, their commands exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from tests.api.job_data import job_data
from tests.pages import blocks

from rollfleet.cli.main import app
from rollfleet_api.documents import read_documents
from rollfleet_api.job import KIND
from rollfleet_api.validation import parse_job

COMMANDS = typer.main.get_command(app)


@pytest.fixture
def pages(repository: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in [*(repository / "docs").rglob("*.md"), repository / "README.md"]}


@pytest.fixture
def shown(pages: dict[Path, str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Each mapping in a block of YAML, after its page's name and the block's text."""
    texts = [(path.name, text) for path, page in pages.items() for text in blocks(page, "yaml")]
    return [(name, text, each) for name, text in texts for each in yaml.safe_load_all(text) if isinstance(each, dict)]


def test_every_shown_job_is_valid(shown: list[tuple[str, str, dict[str, Any]]]) -> None:
    jobs = [(name, text) for name, text, each in shown if each.get("kind") == KIND]
    assert "quick-start.md" in dict(jobs)
    assert [name for name, _, each in shown if each.get("kind") == KIND and "mode" not in each["spec"]] == []
    for origin, text in jobs:
        assert not [document.problems for document in read_documents(text, origin=origin) if document.problems]


def test_every_shown_part_of_a_job_is_valid(shown: list[tuple[str, str, dict[str, Any]]]) -> None:
    parts = [(f"{name}: {text}", each["spec"]) for name, text, each in shown if each.keys() == {"spec"}]
    assert len(parts) > 3
    for origin, spec in parts:
        assert parse_job(job_data(**spec), origin=origin)


def test_every_link_within_the_repository_leads_to_a_file(pages: dict[Path, str]) -> None:
    links = {
        (path, target)
        for path, page in pages.items()
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
        if "://" not in target
    }
    assert links
    assert [f"{path.name}: {target}" for path, target in links if not (path.parent / target).exists()] == []


def test_every_page_is_in_the_navigation_of_the_site(repository: Path) -> None:
    def listed(part: Any) -> list[str]:
        if isinstance(part, str):
            return [part]
        return [page for each in (part.values() if isinstance(part, dict) else part) for page in listed(each)]

    site = yaml.safe_load((repository / "mkdocs.yml").read_text())
    named, contributors = listed(site["nav"]), ("decisions/", "write-a-transport.md")
    assert all(page in site["exclude_docs"].split() for page in contributors)
    written = [str(path.relative_to(repository / "docs")) for path in (repository / "docs").rglob("*.md")]
    assert sorted(named) == sorted(path for path in written if not path.startswith(contributors))


def test_every_shown_command_of_rollfleet_exists(pages: dict[Path, str]) -> None:
    assert isinstance(COMMANDS, typer.core.TyperGroup)
    shown = {
        (path.name, *found)
        for path, page in pages.items()
        for text in blocks(page, "sh")
        for found in re.findall(r"^(?:kubectl )?rollfleet ([a-z]+)([^\n#|]*)", text, re.MULTILINE)
    }
    assert len(shown) > 3
    for name, command, rest in shown:
        assert command in COMMANDS.commands, f"{name}: {command}"
        options = {option for each in COMMANDS.commands[command].params for option in each.opts}
        used = {word.partition("=")[0] for word in rest.split(" -- ")[0].split() if word.startswith("--")}
        assert used <= options, f"{name}: {command}{rest}"
