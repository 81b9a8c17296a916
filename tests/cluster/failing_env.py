"""An environment whose process dies at its 60th step: its learner's job goes on with others."""

import os
from typing import Any

import gymnasium


class Dying(gymnasium.Wrapper[Any, Any, Any, Any]):
    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 60:
            os._exit(3)
        return self.env.step(action)


def make() -> gymnasium.Env[Any, Any]:
    return Dying(gymnasium.make("CartPole-v1"))
