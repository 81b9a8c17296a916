"""Texts of users, of workers and of the cluster, as messages quote them: any program may have written them."""

from typing import Final

MAX_QUOTED: Final = 60
"""The most characters of a wrong text in a message."""


def clipped(text: str) -> str:
    """Return a text for a message: in one line of at most `MAX_QUOTED` characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTED else f"{line[: MAX_QUOTED - 1]}…"


def last_line(text: str | None) -> str:
    r"""Return the last line of a log or an error that has text; empty if none has.

    Example:
        >>> last_line("Traceback\nValueError: broken\n "), last_line(None)
        ('ValueError: broken', '')
    """
    return next((line.strip() for line in reversed((text or "").splitlines()) if line.strip()), "")


def reason_of(error: str | None) -> str:
    """Return the last line of a worker's error, which the worker chooses.

    Example:
        >>> reason_of("ValueError: broken"), reason_of(" ")
        ('ValueError: broken', 'no reason given')
    """
    return last_line(error) or "no reason given"


def one_line(text: str) -> str:
    """Reduce a text to one printable line."""
    return "".join(each for each in " ".join(text.split()) if each.isprintable())
