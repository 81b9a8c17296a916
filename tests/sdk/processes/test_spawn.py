"""Workers in new interpreters import named entrypoints, which need no pickling."""

import sys
from itertools import islice
from pathlib import Path

import pytest

from rollfleet import Collector

CODE = """
import threading
import gymnasium
from rollfleet.testing import CountingEnv

LOCK = threading.Lock()  # cannot be pickled, and neither can its owners

class Locked(CountingEnv):
    def __init__(self, start=0):
        super().__init__()
        self.lock, self.steps = LOCK, start

class Policy:
    def __init__(self, actions):
        self.lock, self.last = LOCK, int(actions.n) - 1

    def __call__(self, observation):
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
        for number, batch in enumerate(islice(collector, 3)):
            assert batch["observation"][0].flatten().tolist() == [3.0 + 8 * number + frame for frame in range(8)]
            assert (batch["action"] == 1).all()
    assert "locked_things" not in sys.modules  # the learner did not import it


def test_a_spawned_worker_gets_paths_of_any_type_and_arguments_of_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked_things.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    monkeypatch.setattr(sys, "argv", [*sys.argv, 200_000 * "x"])
    with Collector("locked_things:Locked-v0", frames_per_batch=8, workers=1) as collector:
        assert next(collector).shape == (1, 8)
