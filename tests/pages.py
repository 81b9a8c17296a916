"""Blocks of code on pages, and the commands that they show."""

import os
import re
import sys
from pathlib import Path

from tests.running import output_of

BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
"""A block's language and text."""


def blocks(page: str, *languages: str) -> list[str]:
    """Return the texts of the page's blocks in these languages, in order."""
    return [text for language, text in BLOCK.findall(page) if language in languages]


def blocks_of(file: Path, *languages: str) -> list[str]:
    """Return the same of a page's file."""
    return blocks(file.read_text(), *languages)


def environ() -> dict[str, str]:
    """Return the variables of a shell in which this Python's environment is active."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def shell(command: str, folder: Path) -> str:
    """Run a command in a folder. Returns its output."""
    return output_of("bash", "-ec", command, cwd=folder, env=environ())
