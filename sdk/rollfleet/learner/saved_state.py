"""The state of a run, as `state_dict` returns it and `load_state_dict` takes it: checked before any of it is used."""

from collections.abc import Mapping
from typing import Any

from rollfleet.arguments import plain, shown, true_or_false, whole_number
from rollfleet.errors import JobInvalid

COUNTS = ("version", "frames", "batches", "round", "seeding", "origin")
KEYS = (*COUNTS, "seed", "static_seed", "episode_returns", "episode_lengths")


def checked(state: object) -> dict[str, Any]:
    """Return a state with values of Python's types.

    Raises:
        JobInvalid: Keys are missing, or a value cannot be one of a `state_dict`.
    """
    if not isinstance(state, Mapping):
        raise JobInvalid(f"state: expected the result of state_dict(), got {shown(state)}")
    if missing := [key for key in KEYS if key not in state]:
        raise JobInvalid(f"state: expected the result of state_dict(); {', '.join(map(repr, missing))} missing")
    counts = {key: whole_number(state[key], f"state[{key!r}]") for key in COUNTS}
    seed = None if state["seed"] is None else whole_number(state["seed"], "state['seed']")
    return counts | {
        "seed": seed,
        "static_seed": true_or_false(state["static_seed"], "state['static_seed']"),
        "episode_returns": _numbers(state, "episode_returns"),
        "episode_lengths": _numbers(state, "episode_lengths"),
    }


def _numbers(state: Mapping[str, Any], key: str) -> list[Any]:
    values = state[key]
    numbers = [plain(value) for value in values] if isinstance(values, list | tuple) else None
    if numbers is None or not all(isinstance(number, int | float) for number in numbers):
        raise JobInvalid(f"state[{key!r}]: expected a list of numbers, got {shown(values)}")
    return numbers
