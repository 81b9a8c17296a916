"""Settings of environments as JSON: a row for each worker, and in it a dict for each environment."""

from collections.abc import Mapping
from typing import Any

from rollfleet.arguments import shown
from rollfleet.errors import JobInvalid, MessageCorrupt, MessageTooLarge
from rollfleet.wire.plain_values import from_json, to_json
from rollfleet_api.messages import MAX_SETTINGS_BYTES

NO_SETTINGS = "[[{}]]"


def pack_settings(settings: Any, *, workers: int, num_envs: int) -> str:
    """Return settings as JSON.

    Args:
        settings: The dict of all environments, or a function of the worker and the environment, both from 0.
        workers: The number of workers that the function is called for.
        num_envs: The number of environments of each.

    Raises:
        JobInvalid: They are no dicts, cannot be sent, or are too long.

    Example:
        >>> text = pack_settings(lambda worker, env: {"level": env}, workers=2, num_envs=2)
        >>> unpack_settings(text, worker=5, num_envs=3)
        ({'level': 0}, {'level': 1}, {'level': 0})
    """
    if callable(settings):
        rows = [[_checked(settings(worker, env)) for env in range(num_envs)] for worker in range(workers)]
    else:
        rows = [[_checked(settings)]]
    try:
        return to_json(rows, max_bytes=MAX_SETTINGS_BYTES)
    except MessageTooLarge as error:
        raise JobInvalid(f"settings: {error}; set a name or a seed, and let the environment make the rest") from None
    except (TypeError, ValueError) as error:
        raise JobInvalid(f"settings: they cannot be sent: {error}") from None


def unpack_settings(text: str, *, worker: int, num_envs: int) -> tuple[Mapping[str, Any], ...]:
    """Return the settings of a worker's environments. Later workers and environments take rows and dicts in turn.

    Raises:
        MessageCorrupt: `pack_settings` did not make this text.
    """
    try:
        rows = from_json(text)
        row = rows[worker % len(rows)]
        return tuple(dict(row[env % len(row)]) for env in range(num_envs))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise MessageCorrupt(f"no settings: {error}") from error


def _checked(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise JobInvalid(f'settings: expected a dict such as {{"level": 3}}, got {shown(value)}')
    return dict(value)
