"""The backend `EnvPool`: environments in C++, stepped by EnvPool's own threads."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rollfleet.errors import EnvironmentInvalid
from rollfleet.system.cpus import available_cpus
from rollfleet_api.wording import nearest

_OURS = ("env_type", "num_envs", "batch_size", "seed", "env_seed")
_INT32 = 1 << 31


class EnvPoolVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A pool that resets in a step of its own. `reset` creates it, because EnvPool takes seeds only then.

    Attributes:
        takes_seeds: Whether `reset` takes one seed for each environment.
    """

    takes_seeds = True

    def __init__(self, env_id: str, num_envs: int, kwargs: Mapping[str, object]) -> None:
        """Read the spaces of an environment; no pool is created yet.

        `kwargs` are EnvPool's and the environment's. `num_threads` defaults to the number of environments or of
        available CPUs, whichever is less.

        Raises:
            EnvironmentInvalid: EnvPool is not installed, does not know the environment, or refuses the keyword
                arguments.
        """
        self._pool: Any = None
        source = f"environment {env_id!r} of EnvPool"
        try:
            self._envpool = import_module("envpool")
        except ImportError as exc:
            raise EnvironmentInvalid(
                f"{source}: the package envpool cannot be imported ({exc}); pip install 'rollfleet[envpool]'"
            ) from exc
        if ours := [name for name in _OURS if name in kwargs]:
            raise EnvironmentInvalid(
                f"{source}: {ours[0]!r} follows from the job; remove it from the keyword arguments"
            )
        known = self._envpool.list_all_envs()
        if env_id not in known:
            near = nearest(env_id, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise EnvironmentInvalid(f"{source}: no such environment{hint}")
        self._id, self._kwargs = env_id, {"num_threads": min(num_envs, available_cpus()), **kwargs}
        try:
            with _bounds_in_double():
                spec = self._envpool.make_spec(env_id, num_envs=num_envs, **self._kwargs)
                self.single_observation_space = spec.gymnasium_observation_space
                self.single_action_space = spec.gymnasium_action_space
        except Exception as exc:
            raise EnvironmentInvalid(
                f"{source} cannot be built with kwargs {dict(kwargs)}: {type(exc).__name__}: {exc}"
            ) from exc
        if (players := getattr(spec.config, "max_num_players", 1)) > 1:
            raise EnvironmentInvalid(f"{source} has {players} players; only environments of one player are supported")
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments. With seeds, and the first time, create a new pool."""
        with _bounds_in_double():
            if seed is not None or self._pool is None:
                first = seed if isinstance(seed, int) else 0
                seeds = seed if isinstance(seed, list) else [first + i for i in range(self.num_envs)]
                self.close()
                self._pool = self._envpool.make_gymnasium(
                    self._id, num_envs=self.num_envs, env_seed=[_signed(value or 0) for value in seeds], **self._kwargs
                )
                self.closed = False
            observation, info = self._pool.reset()
        return observation, info

    def step(self, actions: Any) -> Any:
        """Step all environments. One whose episode has ended is reset instead, and its action ignored."""
        return self._pool.step(actions)

    def render(self) -> Any:
        """Return a picture of the first environment, uint8 `[1, height, width, 3]`. It needs `render_mode`."""
        return self._pool.render()

    def close(self, **_: Any) -> None:
        """End the pool's threads. May be called again."""
        if self._pool is not None:
            self._pool.close()
        self._pool, self.closed = None, True


def _signed(seed: int) -> int:
    """Map 32 bits to EnvPool's range, one to one except for the two ends, which EnvPool refuses."""
    return min(max(seed % (2 * _INT32) - _INT32, 1 - _INT32), _INT32 - 2)


@contextmanager
def _bounds_in_double() -> Iterator[None]:
    """Silence Gymnasium's warning about bounds in double precision, which EnvPool always uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*precision lowered by casting", category=UserWarning)
        yield
