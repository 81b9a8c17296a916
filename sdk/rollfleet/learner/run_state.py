"""The rounds and seeds of a run; a restored run continues the seeds. And the check of a saved state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollfleet.arguments import plain, shown, true_or_false, whole_number
from rollfleet.errors import JobInvalid
from rollfleet_api.versions import MAX_VERSIONS


@dataclass(slots=True, kw_only=True)
class RunState:
    """Rounds and seeds of a run.

    Attributes:
        round: The last round that this learner opened.
        closed: The last one that was closed before all workers had sent.
        seed: The last seed passed to `set_seed`; None: none was.
        static_seed: Whether all workers and environments get that very seed.
        seeding: The number of calls of `set_seed`.
        interrupts: The number of iterations that an exception ended while a batch was under way.
        origin: Added to the workers' incarnations in a restored run.
    """

    round: int = 0
    closed: int = 0
    seed: int | None = None
    static_seed: bool = False
    seeding: int = 0
    interrupts: int = 0
    origin: int = 0

    def set_seed(self, seed: int, *, static: bool) -> None:
        """Make workers begin again with this seed, even if it is the last one."""
        self.seed, self.static_seed, self.seeding = seed, static, self.seeding + 1

    def state_dict(self, incarnations: int) -> dict[str, Any]:
        """Return the state for a run that continues elsewhere, after workers that had this many incarnations."""
        return {
            "seed": self.seed,
            "static_seed": self.static_seed,
            "seeding": self.seeding,
            "origin": self.origin + incarnations,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.seed, self.static_seed = state["seed"], state["static_seed"]
        self.seeding, self.origin = state["seeding"], state["origin"]


def checked(state: object) -> dict[str, Any]:
    """Return a saved state with values of Python's types, before any of it is used.

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
    "version": lambda value, name: whole_number(value, name, most=MAX_VERSIONS - 1),  # the next one needs a number
    **dict.fromkeys(("frames", "batches", "seeding", "origin"), whole_number),
    "seed": _seed,
    "static_seed": true_or_false,
    "episode_returns": _numbers,
    "episode_lengths": _numbers,
}
