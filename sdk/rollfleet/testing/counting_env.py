"""An environment that shows its own step count, so that a batch proves which steps it holds."""

from typing import Any

import gymnasium
import numpy as np


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observes the number of steps so far, over all episodes: float32 `[1]`. Every step gives reward 1.

    Example:
        >>> env = CountingEnv(episode_frames=2)
        >>> env.reset()[0], env.step(0)[0], env.step(0)[2]
        (array([0.], dtype=float32), array([1.], dtype=float32), True)

    Args:
        breaks_at: The step that raises ArithmeticError; 0: none.
        episode_frames: Frames per episode.

    Attributes:
        steps: Number of steps so far.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, breaks_at: int = 0, episode_frames: int = 5) -> None:
        self.steps, self._breaks_at, self._episode_frames = 0, breaks_at, episode_frames

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. The count goes on."""
        super().reset(seed=seed)
        return np.array([self.steps], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step. Terminates after `episode_frames` steps."""
        self.steps += 1
        if self.steps == self._breaks_at:
            raise ArithmeticError("the simulator broke")
        return np.array([self.steps], np.float32), 1.0, self.steps % self._episode_frames == 0, False, {}
