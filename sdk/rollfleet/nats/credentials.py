"""The credentials file of a user of NATS: a JWT with its seed, or `user:password`."""

from pathlib import Path
from typing import Any


def login(file: Path) -> dict[str, Any]:
    """Return the options of nats-py with which a file's user logs in.

    The file is read again at each connection: its credentials may have been renewed.
    """
    if b"BEGIN NATS USER JWT" in file.read_bytes():  # nats-py reads any other file without an end
        return {"user_credentials": str(file)}
    return {"user": lambda: _parts(file)[0], "password": lambda: _parts(file)[2]}


def _parts(file: Path) -> tuple[str, str, str]:
    return file.read_text().strip().partition(":")
