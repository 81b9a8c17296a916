"""Spawned workers run the top level of a script whose collector stands below its main guard."""

import sys
from pathlib import Path

import pytest
from tests.running import output_of

SCRIPT = """
import gymnasium, numpy, torch
import rollfleet, library
from rollfleet.testing import CountingEnv

library.REWARD = 10.0
library.Scale.by = lambda self: 10.0
torch.set_default_dtype(torch.float64)
numpy.seterr(divide="raise")

class Env(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(CountingEnv())

    def step(self, action):
        seen, _, *ended = self.env.step(action)
        return seen, library.REWARD * library.Scale().by(), *ended

    def settings(self):
        registered = gymnasium.spec("Mine-v0").entry_point
        return [str(torch.get_default_dtype()), numpy.geterr()["divide"], registered is Env]

gymnasium.register("Mine-v0", entry_point=Env)

def main():
    with rollfleet.Collector(Env, frames_per_batch=2, workers=1) as collector:
        print(next(collector)["next", "reward"].flatten().tolist(), *collector.call(None, "env.settings")[0][0])

"""
LIBRARY = """
REWARD = 1.0

class Scale:
    def by(self):
        return 1.0
"""


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ('if __name__ == "__main__":\n    main()', "[100.0, 100.0] torch.float64 raise True"),
        ('if __name__ == "__main__":\n    print("once")\nmain()', "once\n[1.0, 1.0] torch.float32 warn True"),
    ],
    ids=["below the guard", "at top level"],
)
def test_workers_run_the_top_level_of_a_script_whose_collector_stands(end: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(LIBRARY)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + end)
    assert output_of(sys.executable, script) == found + "\n"
