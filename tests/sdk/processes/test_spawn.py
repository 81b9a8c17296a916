"""Workers in new interpreters import named entrypoints, which need no pickling."""

import sys
from itertools import islice
from pathlib import Path

import pytest

from rollfleet import Collector

CODE = """
import threading

import gymnasium
import numpy as np

LOCK = threading.Lock()  # cannot be pickled, and neither can its owner


class Locked(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(5)

    def __init__(self, start=0):
        self.lock, self.start = threading.Lock(), start

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.start], np.float32), {}

    def step(self, action):
        with self.lock:
            return np.array([self.start], np.float32), float(action), False, False, {}


class Policy:
    def __init__(self, actions):
        self.lock, self.last = LOCK, int(actions.n) - 1

    def __call__(self, observation):
        with self.lock:
            return observation.new_full((len(observation),), self.last).long()


def make(observations, actions):
    return Policy(actions)


gymnasium.register("Locked-v0", entry_point=Locked)
"""


def test_a_spawned_worker_imports_named_entrypoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked_things.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)  # of workers too
    with Collector(
        "locked_things:Locked-v0",
        policy_factory="locked_things:make",
        env_kwargs={"start": 3},
        num_envs=2,
        frames_per_batch=16,
        workers=1,
    ) as collector:
        for batch in islice(collector, 3):
            assert (batch["observation"] == 3).all()
            assert (batch["next", "reward"] == 4).all()
    assert "locked_things" not in sys.modules  # the learner did not import it
