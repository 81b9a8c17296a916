"""Arguments of public calls, one by one: NumPy's numbers are numbers, and a wrong value is an error that names it."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from rollfleet.errors import JobInvalid
from rollfleet_api.fields import MAX_COUNT

MAX_SECONDS: Final = 1e9
"""The longest time to wait for: thirty years. Timeouts of the system end beyond it."""

MAX_SHOWN: Final = 60
"""The most characters of a wrong value in a message."""


def plain(value: Any) -> Any:
    """Return a NumPy scalar as Python's number, bool or text; any other value as it is.

    Example:
        >>> import numpy as np
        >>> plain(np.int64(5)), plain(np.True_), plain("5")
        (5, True, '5')
    """
    return value.item() if isinstance(value, np.generic) else value


def shown(value: object) -> str:
    """Return a value as Python shows it, for a message: in one line, cut after `MAX_SHOWN` characters."""
    try:
        text = " ".join(repr(plain(value)).split())
    except Exception:  # an object of the caller's
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def as_json(value: object, name: str) -> Any:
    """Return a value as JSON has it, for a job.

    Raises:
        JobInvalid: JSON cannot hold it.
    """
    try:
        return json.loads(json.dumps(value, default=plain, allow_nan=False))
    except (TypeError, ValueError):
        raise JobInvalid(
            f"`{name}`: a job holds numbers, texts, lists and mappings, not {shown(value)}; write a function of a "
            f"module that makes it on the worker"
        ) from None


def for_each(value: object, workers: int, name: str) -> list[Any]:
    """Return the value of an argument for each worker: the entries of a list, or one value for all.

    Raises:
        JobInvalid: A list has another length.
    """
    if not isinstance(value, list | tuple):
        return [value] * workers
    if len(value) != workers:
        raise JobInvalid(
            f"`{name}` has {len(value)} entries for {workers} workers; write one for each worker, or one for all"
        )
    return list(value)


def whole_number(value: object, name: str, *, least: int = 0, most: int = MAX_COUNT) -> int:
    """Return a whole number from `least` to `most`, of Python's type; `name` is the argument's in the call.

    Raises:
        JobInvalid: It is no whole number, or not between the limits.

    Example:
        >>> whole_number(-2, "count", least=1)
        Traceback (most recent call last):
        rollfleet.errors.JobInvalid: count: must be at least 1, got -2
    """
    number = plain(value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise JobInvalid(f"{name}: expected an int, got {shown(number)}")
    if number < least:
        raise JobInvalid(f"{name}: must be at least {least}, got {number}")
    if number > most:
        raise JobInvalid(f"{name}: must be at most {most}, got {shown(number)}")
    return number


def seconds(value: object, name: str) -> float:
    """Return a time in seconds: from 0 to `MAX_SECONDS`.

    Raises:
        JobInvalid: It is no such number.
    """
    number = plain(value)
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise JobInvalid(f"{name}: expected a number of seconds, got {shown(number)}")
    if not 0 <= number <= MAX_SECONDS:  # false for NaN
        raise JobInvalid(f"{name}: must be between 0 and {MAX_SECONDS:.0e} seconds, got {shown(number)}")
    return float(number)


def true_or_false(value: object, name: str) -> bool:
    """Return a bool.

    Raises:
        JobInvalid: It is another value.
    """
    flag = plain(value)
    if not isinstance(flag, bool):
        raise JobInvalid(f"{name}: expected True or False, got {shown(flag)}")
    return flag


def path_of(value: Any, name: str) -> Path:
    """Return the path of a file or a folder.

    Raises:
        JobInvalid: It is no text and no path.
    """
    try:
        return Path(value)
    except TypeError:
        raise JobInvalid(f"{name}: expected a path, got {shown(value)}") from None
