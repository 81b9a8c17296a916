"""Texts for users are in plain technical English: some words are banned because they made texts hard to read."""

import re
from collections.abc import Callable, Iterator
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


def texts_of_the_definition(_: Path) -> dict[str, str]:
    return dict(descriptions(yaml.safe_load(crd_yaml())))


def help_of_commands(_: Path) -> dict[str, str]:
    return dict(helps(typer.main.get_command(app), "rollfleet"))


def help_of_metrics(_: Path) -> dict[str, str]:
    lines = Metrics(Cache(), WorkQueue()).exposition().decode().splitlines()
    return {line.split()[2]: line for line in lines if line.startswith("# HELP ")}


def pages(repository: Path) -> dict[str, str]:
    patterns = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "charts/*/README.md")
    found = [page for pattern in patterns for page in repository.glob(pattern)]
    return {str(page.relative_to(repository)): LINK_TARGET.sub("]", page.read_text()) for page in found}


def texts_of_the_chart(repository: Path) -> dict[str, str]:
    names = ("values.yaml", "Chart.yaml", "templates/NOTES.txt")
    return {name: (repository / "charts/rollfleet" / name).read_text() for name in names}


@pytest.mark.parametrize(
    ("texts", "least"),
    [(texts_of_the_definition, 50), (help_of_commands, 6), (help_of_metrics, 10), (pages, 40), (texts_of_the_chart, 3)],
)
def test_texts_have_no_banned_words(repository: Path, texts: Callable[[Path], dict[str, str]], least: int) -> None:
    found = texts(repository)
    assert len(found) >= least
    assert banned_words(found) == []
