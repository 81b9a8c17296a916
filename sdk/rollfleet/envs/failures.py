"""An environment of a vector that fails, and is replaced while the others go on."""

from typing import Any, Final, NamedTuple

import numpy as np

from rollfleet.system.tracebacks import formatted

FAILURES: Final = "failed"
"""The key of a vector's infos whose value, an object array [envs], lists the failures of each environment."""

ATTEMPTS: Final = 5
"""Failures of an environment in a row, before a first observation, after which it is not replaced."""


class ObservationOutside(Exception):
    """An observation has a number that is not finite, or outside of its space."""


class Failure(NamedTuple):
    """One failure of an environment.

    Attributes:
        name: The class of its error.
        text: Its traceback, or what its process did.
    """

    name: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Return the failure that an exception is."""
        kind = type(error)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        return cls(f"{module}{kind.__qualname__}", formatted(error).rstrip())


def note(failure: Failure, i: int, infos: dict[str, Any], num_envs: int) -> None:
    """Add a failure of environment `i` to a vector's infos."""
    found = infos.setdefault(FAILURES, np.empty(num_envs, object))
    found[i] = [*(found[i] or ()), failure]


def seed_again(seed: int | None, times: int) -> int | None:
    """Return the seed of the environment that replaces one for this time; None: it was never seeded."""
    return None if seed is None else int(np.random.SeedSequence([seed, times]).generate_state(1)[0])
