"""The rounds, seeds and settings of a run; a restored run continues them. And the check of a saved state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollfleet.arguments import plain, shown, true_or_false, whole_number
from rollfleet.errors import JobInvalid, MessageCorrupt
from rollfleet.wire.env_settings import unpack_settings
from rollfleet_api.versions import MAX_VERSIONS


@dataclass(slots=True, kw_only=True)
class RunState:
    """Rounds, seeds and environments' settings of a run.

    Attributes:
        round: The last round that this learner opened.
        closed: The last one that was closed before all workers had sent.
        seed: The last seed passed to `set_seed`; None: none was.
        static_seed: Whether all workers and environments get that very seed.
        seeding: The number of calls of `set_seed`.
        interrupts: The number of iterations that an exception ended while a batch was under way.
        origin: Added to the workers' incarnations in a restored run.
        env_version: The version of the environments' settings; 0: none was set.
        env_settings: These settings as JSON.
    """

    round: int = 0
    closed: int = 0
    seed: int | None = None
    static_seed: bool = False
    seeding: int = 0
    interrupts: int = 0
    origin: int = 0
    env_version: int = 0
    env_settings: str = ""

    def set_seed(self, seed: int, *, static: bool) -> None:
        """Make workers begin again with this seed, even if it is the last one."""
        self.seed, self.static_seed, self.seeding = seed, static, self.seeding + 1

    def set_env(self, settings: str) -> None:
        """Make workers give their environments these settings, JSON."""
        self.env_settings, self.env_version = settings, self.env_version + 1

    def state_dict(self, incarnations: int) -> dict[str, Any]:
        """Return the state for a run that continues elsewhere, after workers that had this many incarnations."""
        return {
            "seed": self.seed,
            "static_seed": self.static_seed,
            "seeding": self.seeding,
            "origin": self.origin + incarnations,
            "env_version": self.env_version,
            "env_settings": self.env_settings,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.seed, self.static_seed = state["seed"], state["static_seed"]
        self.seeding, self.origin = state["seeding"], state["origin"]
        if settings := state["env_settings"]:
            later = self.env_version + 1 if self.env_version else 0  # of this job's earlier learners
            self.env_settings, self.env_version = settings, max(later, state["env_version"])


def checked(state: object) -> dict[str, Any]:
    """Return a saved state with values of Python's types, before any of it is used.

    Raises:
        JobInvalid: Keys are missing, or a value cannot be one of a `state_dict`.
    """
    if not isinstance(state, Mapping):
        raise JobInvalid(f"state: expected the result of state_dict(), got {shown(state)}")
    if missing := [key for key in _CHECKS if key not in {**_LATER, **state}]:
        raise JobInvalid(f"state: expected the result of state_dict(); {', '.join(map(repr, missing))} missing")
    return {key: check(state.get(key, _LATER.get(key)), f"state[{key!r}]") for key, check in _CHECKS.items()}


def _seed(value: object, name: str) -> int | None:
    return None if value is None else whole_number(value, name)


def _numbers(values: object, name: str) -> list[Any]:
    numbers = [plain(value) for value in values] if isinstance(values, list | tuple) else None
    if numbers is None or not all(isinstance(number, int | float) for number in numbers):
        raise JobInvalid(f"{name}: expected a list of numbers, got {shown(values)}")
    return numbers


def _settings(value: object, name: str) -> str:
    try:
        if value:
            unpack_settings(str(value), worker=0, num_envs=1)
    except MessageCorrupt as error:
        raise JobInvalid(f"{name}: {error}") from None
    return str(value)


_LATER: Final = {"env_version": 0, "env_settings": ""}
"""What states of earlier releases lack."""

_CHECKS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "version": lambda value, name: whole_number(value, name, most=MAX_VERSIONS - 1),  # the next one needs a number
    **dict.fromkeys(("frames", "batches", "seeding", "origin"), whole_number),
    "seed": _seed,
    "static_seed": true_or_false,
    "env_version": whole_number,
    "env_settings": _settings,
    "episode_returns": _numbers,
    "episode_lengths": _numbers,
}
