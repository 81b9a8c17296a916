"""The state of a run, as `state_dict` returns it and `load_state_dict` takes it: checked before any of it is used."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from rollfleet.arguments import plain, shown, true_or_false, whole_number
from rollfleet.errors import JobInvalid


def checked(state: object) -> dict[str, Any]:
    """Return a state with values of Python's types.

    Raises:
        JobInvalid: Keys are missing, or a value cannot be one of a `state_dict`.
    """
    if not isinstance(state, Mapping):
        raise JobInvalid(f"state: expected the result of state_dict(), got {shown(state)}")
    if missing := [key for key in _CHECKS if key not in state]:
        raise JobInvalid(f"state: expected the result of state_dict(); {', '.join(map(repr, missing))} missing")
    return {key: check(state[key], f"state[{key!r}]") for key, check in _CHECKS.items()}


def _seed(value: object, name: str) -> int | None:
    return None if value is None else whole_number(value, name)


def _numbers(values: object, name: str) -> list[Any]:
    numbers = [plain(value) for value in values] if isinstance(values, list | tuple) else None
    if numbers is None or not all(isinstance(number, int | float) for number in numbers):
        raise JobInvalid(f"{name}: expected a list of numbers, got {shown(values)}")
    return numbers


_CHECKS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    **dict.fromkeys(("version", "frames", "batches", "round", "seeding", "origin"), whole_number),
    "seed": _seed,
    "static_seed": true_or_false,
    "episode_returns": _numbers,
    "episode_lengths": _numbers,
}
