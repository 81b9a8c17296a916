"""EnvPool's environments, in C++ on its own threads, as a vector environment of Gymnasium."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rollfleet.errors import EnvironmentInvalid
from rollfleet.system.cpus import available_cpus

_OURS = ("env_type", "num_envs", "batch_size", "seed", "env_seed")
_INT32 = 1 << 31


class EnvPoolVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A pool that resets in a step of its own. It is made when it is seeded, which EnvPool does when it makes one.

    Attributes:
        takes_seeds: `reset` takes a seed for each environment.
    """

    takes_seeds = True

    def __init__(self, env_id: str, num_envs: int, kwargs: Mapping[str, object]) -> None:
        """Ask EnvPool for the spaces of one of its environments.

        Args:
            env_id: As EnvPool calls it.
            num_envs: How many are stepped together.
            kwargs: Of EnvPool and of the environment. `num_threads` is by default as many as there are CPUs for, or
                environments.

        Raises:
            EnvironmentInvalid: EnvPool is not installed, has no such environment, or refuses the keyword arguments.
        """
        source = f"environment {env_id!r} of EnvPool"
        try:
            self._envpool = import_module("envpool")
        except ImportError as exc:
            raise EnvironmentInvalid(
                f"{source}: the package envpool cannot be imported ({exc}); pip install 'rollfleet[envpool]'"
            ) from exc
        if ours := [name for name in _OURS if name in kwargs]:
            raise EnvironmentInvalid(f"{source}: {ours[0]!r} follows from the job; remove it from env.kwargs")
        known = self._envpool.list_all_envs()
        if env_id not in known:
            near = get_close_matches(env_id, known, n=1)
            raise EnvironmentInvalid(f"{source}: there is none" + (f"; did you mean {near[0]!r}?" if near else ""))
        self._id, self._kwargs = env_id, {"num_threads": min(num_envs, available_cpus()), **kwargs}
        self._pool: Any = None
        try:
            with _bounds_in_double():
                spec = self._envpool.make_spec(env_id, num_envs=num_envs, **self._kwargs)
                self.single_observation_space = spec.gymnasium_observation_space
                self.single_action_space = spec.gymnasium_action_space
        except Exception as exc:
            raise EnvironmentInvalid(
                f"{source} cannot be made with kwargs {dict(kwargs)}: {type(exc).__name__}: {exc}"
            ) from exc
        if (players := getattr(spec.config, "max_num_players", 1)) > 1:
            raise EnvironmentInvalid(f"{source} has {players} players; only those of one player are supported")
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments. With seeds, or the first time, they are new ones."""
        with _bounds_in_double():
            if seed is not None or self._pool is None:
                first = seed if isinstance(seed, int) else 0
                seeds = seed if isinstance(seed, list) else [first + i for i in range(self.num_envs)]
                self.close()
                self._pool = self._envpool.make_gymnasium(
                    self._id, num_envs=self.num_envs, env_seed=[_signed(one or 0) for one in seeds], **self._kwargs
                )
                self.closed = False
            observation, _ = self._pool.reset()
        return observation, {}

    def step(self, actions: Any) -> Any:
        """Step all; one that ended is reset instead, and its action ignored."""
        observation, reward, terminated, truncated, _ = self._pool.step(actions)
        return observation, reward, terminated, truncated, {}

    def close(self, **_: Any) -> None:
        """End its threads. Again is harmless."""
        if self._pool is not None:
            self._pool.close()
        self._pool, self.closed = None, True


def _signed(seed: int) -> int:
    """One to one from 32 bits to what EnvPool takes, but for the two at the ends that it does not take."""
    return min(max(seed % (2 * _INT32) - _INT32, 1 - _INT32), _INT32 - 2)


@contextmanager
def _bounds_in_double() -> Iterator[None]:
    """EnvPool tells bounds in double precision, of which Gymnasium warns whatever the space's dtype."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*precision lowered by casting", category=UserWarning)
        yield
