"""The progress of a run in rounds and seeds, which a restored run continues."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, kw_only=True)
class RunState:
    """Rounds and seeds of a run.

    Attributes:
        round: The last round that was opened.
        closed: The last round that was closed before all workers had sent.
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
            "round": self.round,
            "seed": self.seed,
            "static_seed": self.static_seed,
            "seeding": self.seeding,
            "origin": self.origin + incarnations,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.round = max(self.round, state["round"])
        self.seed, self.static_seed = state["seed"], state["static_seed"]
        self.seeding, self.origin = state["seeding"], state["origin"]
