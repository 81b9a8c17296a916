"""`python -m rollfleet.torchrl program.py` runs a program of TorchRL's unchanged."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from functools import partial

from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector

import beside


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, observation):
        return self.linear(observation)


policy = TensorDictModule(Net(), in_keys=["observation"], out_keys=["action"])
make = partial(lambda name: beside.make_env(name), "Pendulum-v1")
collector = Collector(make, policy, frames_per_batch=20, total_frames=40)
print(type(collector).__module__.partition(".")[0], [tuple(batch.shape) for batch in collector])
collector.shutdown()
"""
BESIDE = """
from torchrl.envs import GymEnv


def make_env(name):
    return GymEnv(name)
"""


@pytest.mark.parametrize(
    ("options", "shape"), [([], (20,)), pytest.param(["--workers", "2"], (2, 10), marks=pytest.mark.slow)]
)
def test_a_program_runs_unchanged(options: list[str], shape: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text(BESIDE)
    command = [sys.executable, "-W", "ignore", "-m", "rollfleet.torchrl", *options, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"rollfleet {[shape] * 2}"
