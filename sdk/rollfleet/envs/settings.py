"""What the learner sets for environments during a run: a curriculum's task, a level, a difficulty."""

import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

from rollfleet.errors import EnvironmentInvalid


class Settings(NamedTuple):
    """The settings of a vector's environments. They reach each at its next reset.

    Attributes:
        values: A dict for each environment.
        method: The method of an environment that takes its dict, before each reset; empty: they are the options of
            `reset`.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("CartPole-v1")
        >>> observation, _ = Settings(({"low": 0.0, "high": 0.0},), method="").reset(env, 0, seed=None)
        >>> observation.tolist()
        [0.0, 0.0, 0.0, 0.0]
    """

    values: tuple[Mapping[str, Any], ...]
    method: str

    def of(self, group: slice) -> "Settings":
        """Return those of some of the environments."""
        return self._replace(values=self.values[group])

    def reset(self, env: Any, i: int, seed: int | None) -> Any:
        """Reset environment `i` with its settings. Returns what its `reset` returns.

        Raises:
            EnvironmentInvalid: It does not have the method.
        """
        if not self.method:
            return env.reset(seed=seed, options=dict(self.values[i]))
        self._call(env, self.values[i])
        return env.reset(seed=seed)

    def give(self, env: Any) -> None:
        """Call the method of environments that are one batch, and reset by themselves.

        Raises:
            EnvironmentInvalid: No method is named, or the settings of its environments differ.
        """
        if not self.method:
            raise EnvironmentInvalid(
                f"environment {env} resets its environments by itself: name the method of it that takes settings in "
                "`settings_method` (`env.settingsMethod` of a job), or let its factory return a single gymnasium.Env"
            )
        if len(set(map(pickle.dumps, self.values))) > 1:  # arrays in them have no single truth
            raise EnvironmentInvalid(
                f"environment {env} takes one dict of settings for all its environments; set the same for all of a "
                "worker, or let its factory return a single gymnasium.Env"
            )
        self._call(env, self.values[0])

    def _call(self, env: Any, value: Mapping[str, Any]) -> None:
        try:
            found = env.get_wrapper_attr(self.method) if hasattr(env, "get_wrapper_attr") else getattr(env, self.method)
        except AttributeError:
            raise EnvironmentInvalid(
                f"environment {env} has no method {self.method!r}, which `settings_method` (`env.settingsMethod` of a "
                "job) names"
            ) from None
        found(dict(value))
