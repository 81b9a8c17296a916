"""Texts for users are in plain technical English: some words are banned because they made texts hard to read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from crds.crd import crd_yaml

from rollfleet.cli.main import app
from rollfleet_operator.cache import Cache
from rollfleet_operator.metrics import Metrics
from rollfleet_operator.work_queue import WorkQueue

BANNED = (
    r"told",
    r"tells? of",
    r"anew",
    r"whoever",
    r"whatever it is",
    r"nobody",
    r"somebody",
    r"so many",
    r"there is none",
    r"what is the matter",
    r"one's own",
    r"his own",
    r"of whom",
    r"bears",
    r"would rather",
)
PATTERN = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
LINK_TARGET = re.compile(r"\]\([^)]*\)")


def banned_words(texts: dict[str, str]) -> list[str]:
    return [
        f"{source}: {word.group()}: …{text[max(0, word.start() - 40) : word.end() + 40]}…"
        for source, text in texts.items()
        for word in PATTERN.finditer(text)
    ]


def helps(command: Any, path: str) -> Iterator[tuple[str, str]]:
    yield path, command.get_help(typer.Context(command, info_name=path))
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{path} {name}")


def descriptions(part: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the descriptions and the messages of rules in a schema."""
    if isinstance(part, dict):
        for name, below in part.items():
            if name in ("description", "message", "messageExpression") and isinstance(below, str):
                yield f"{path}.{name}", below
            yield from descriptions(below, f"{path}.{name}")
    elif isinstance(part, list):
        for index, below in enumerate(part):
            yield from descriptions(below, f"{path}[{index}]")


def test_descriptions_of_the_definition_have_no_banned_words() -> None:
    found = dict(descriptions(yaml.safe_load(crd_yaml())))
    assert len(found) > 50
    assert banned_words(found) == []


def test_help_of_every_command_has_no_banned_words() -> None:
    found = dict(helps(typer.main.get_command(app), "rollfleet"))
    assert len(found) > 5
    assert banned_words(found) == []


def test_help_of_metrics_has_no_banned_words() -> None:
    text = Metrics(Cache(), WorkQueue()).exposition().decode()
    assert "# HELP rollfleet_jobs" in text
    assert banned_words({"metrics": text}) == []


@pytest.mark.parametrize("pattern", ["README.md", "CONTRIBUTING.md", "docs/**/*.md", "charts/*/README.md"])
def test_pages_have_no_banned_words(repository: Path, pattern: str) -> None:
    texts = {page: page.read_text() for page in repository.glob(pattern)}
    pages = {str(page.relative_to(repository)): LINK_TARGET.sub("]", text) for page, text in texts.items()}
    assert pages
    assert banned_words(pages) == []


@pytest.mark.parametrize("pattern", ["values.yaml", "Chart.yaml", "templates/NOTES.txt"])
def test_texts_of_the_chart_have_no_banned_words(repository: Path, pattern: str) -> None:
    page = repository / "charts/rollfleet" / pattern
    assert banned_words({pattern: page.read_text()}) == []
