"""An environment whose observations identify each frame, so that recorded batches can be checked."""

import os
from itertools import count
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

FIELDS = ("pid", "env", "episode", "step", "frame")
_numbers = count()


class TracedEnv(gymnasium.Env[NDArray[np.int32], np.int64]):
    """Observes int32 [5]: process, environment, episode, step in it, frame since the environment was created.

    Episodes have 3 to 9 steps. Every other one is truncated.
    """

    observation_space = gymnasium.spaces.Box(0, 2**31 - 1, (len(FIELDS),), np.int32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._env, self._episode, self._step, self._frame, self._length = next(_numbers), -1, 0, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[NDArray[np.int32], Any]:
        super().reset(seed=seed, options=options)
        self._episode, self._step = self._episode + 1, 0
        self._length = int(self.np_random.integers(3, 10))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.int32], float, bool, bool, dict[str, Any]]:
        self._step, self._frame = self._step + 1, self._frame + 1
        over, even = self._step == self._length, self._episode % 2 == 0
        return self._observation(), 1.0, over and even, over and not even, {}

    def _observation(self) -> NDArray[np.int32]:
        return np.array([os.getpid(), self._env, self._episode, self._step, self._frame], np.int32)
