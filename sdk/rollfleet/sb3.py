"""Environments in servers for Stable-Baselines3, in the place of its `SubprocVecEnv`."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from stable_baselines3.common.vec_env import VecEnv

from rollfleet.envs.vector import make_vec
from rollfleet.errors import EnvironmentFailed


class ServedVecEnv(VecEnv):
    """A `VecEnv` whose environments step in servers, several in each: see `rollfleet.make_vec`.

    Example:
        >>> from stable_baselines3.common.env_util import make_vec_env
        >>> envs = make_vec_env("CartPole-v1", 8, vec_env_cls=ServedVecEnv, vec_env_kwargs={"workers": 2})
        >>> envs.reset().shape
        (8, 4)
        >>> envs.close()
    """

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]], workers: int | None = None) -> None:
        """Start the servers. `workers`: their number; None: one for each CPU."""
        self._envs = make_vec(env_fns, workers=workers, autoreset_mode=AutoresetMode.SAME_STEP)
        self._failed = False  # in its last step
        super().__init__(len(env_fns), self._envs.single_observation_space, self._envs.single_action_space)

    def reset(self) -> Any:
        """See `VecEnv`."""
        everyone = np.arange(self.num_envs)
        if self._failed and any(self._options):
            self._envs.reset()  # without a mask: lost servers start again
        self._failed = False
        # Options of their own: one environment after the other.
        masked: list[dict[str, Any]] = [{**own, "reset_mask": everyone == i} for i, own in enumerate(self._options)]
        for options in masked if any(self._options) else [{}]:  # without a mask: also after an error
            observations, infos = self._envs.reset(seed=self._seeds, options=options)
            for i in np.flatnonzero(options.get("reset_mask", everyone >= 0)).tolist():
                self.reset_infos[i] = _info_of(infos, i)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: Any) -> None:
        """See `VecEnv`."""
        if not isinstance(actions, np.ndarray):  # one action for each environment
            empty: Any = create_empty_array(self.action_space, self.num_envs)
            actions = concatenate(self.action_space, actions, empty)
        self._envs.send(actions)

    def step_wait(self) -> Any:
        """See `VecEnv`."""
        self._failed = True
        observations, rewards, terminations, truncations, infos = self._envs.recv()
        self._failed = False
        each = [_info_of(infos, i) for i in range(self.num_envs)]
        dones = terminations | truncations
        for i in np.flatnonzero(dones).tolist():
            self.reset_infos[i] = following = each[i]
            each[i] = following.pop("final_info") | {"terminal_observation": following.pop("final_obs")}
        for info, truncated in zip(each, truncations & ~terminations, strict=True):
            info["TimeLimit.truncated"] = bool(truncated)
        return observations, rewards.astype(np.float32), dones, each

    def close(self) -> None:
        """See `VecEnv`."""
        self._envs.close()

    def has_attr(self, attr_name: str) -> bool:
        """See `VecEnv`."""
        try:
            self.get_attr(attr_name)
        except EnvironmentFailed:
            return False
        return True

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """See `VecEnv`."""
        return self._envs.call_some(self._get_indices(indices), "call", attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """See `VecEnv`."""
        for i in self._get_indices(indices):
            self._envs.call_some([i], "set_attr", attr_name, [value])

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """See `VecEnv`."""
        return self._envs.call_some(self._get_indices(indices), "call", method_name, *method_args, **method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        """See `VecEnv`."""
        kind = f"{wrapper_class.__module__}.{wrapper_class.__qualname__}"
        return self._envs.call_some(self._get_indices(indices), "is_wrapped", kind)

    def get_images(self) -> Sequence[Any]:
        """See `VecEnv`."""
        return self._envs.render()


def _info_of(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """Return the info of one environment from those of a vector."""
    own = {key: each for key, each in infos.items() if f"_{key}" in infos and infos[f"_{key}"][i]}
    return {key: _info_of(each, i) if isinstance(each, dict) else each[i] for key, each in own.items()}
