"""An environment that fails, and what holds of its frames."""

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from tests.sdk.rollouts import Observing

FAILED, TRAJECTORY = ("collector", "failed"), ("collector", "traj_ids")
NO_LIMIT = {"maxShare": 1.0}


class Failing(Observing):
    """Observes a number of the episode's own, and the frame in it, which is the reward of a step from there, too.

    Some steps fail, by this share of them: with an exception, the end of the process, or without an end. `at`, if it
    is not 0, is a step of each episode that fails.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    length = 40

    def __init__(self, share: float = 0.0, how: str = "raises", at: int = 0, resets: bool = True) -> None:
        self._share, self._how, self._at, self._resets = share, how, at, resets
        self._name = 0.0

    def seen(self) -> Any:
        return np.array([self._name, self.frame])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if not self._resets:
            raise ConnectionError("no simulator")
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self._name = self.np_random.random()
        self.frame = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.np_random.random() < self._share or self.frame + 1 == self._at:
            if self._how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0 if self._how == "raises" else 3600)
            raise ConnectionError("the simulator is gone")
        observation, _, *rest = super().step(action)
        return observation, self.frame - 1.0, *rest


def check(batch: Any) -> tuple[int, int]:
    """Check each transition of a batch; return the numbers of failed episodes, and of those that ended well."""
    mask = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
    before, after = batch["observation"], batch["next", "observation"]
    truncated, done = batch["next", "truncated"][..., 0], batch["next", "done"][..., 0]
    failed, ids = batch[FAILED], batch[TRAJECTORY]
    assert torch.equal(before[..., 0][mask], after[..., 0][mask])
    assert torch.equal(before[..., 1][mask] + 1, after[..., 1][mask])
    assert torch.equal(before[..., 1][mask].float(), batch["next", "reward"][..., 0][mask])
    assert (truncated | ~failed).all()
    goes_on = (ids[:, 1:] == ids[:, :-1])[mask[:, 1:]]
    assert torch.equal(goes_on, ~done[:, :-1][mask[:, 1:]])
    assert torch.equal(after[:, :-1][mask[:, 1:]][goes_on], before[:, 1:][mask[:, 1:]][goes_on])
    assert (before[:, 1:, 1][mask[:, 1:]][~goes_on] == 0).all()
    return int(failed.sum()), int((done & ~failed).sum())
