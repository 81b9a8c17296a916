"""`python -m rollfleet.torchrl program.py` runs a program of TorchRL's unchanged."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.job_server import Server, join_all
from tests.running import output_of
from tests.sdk.torchrl import programs

from rollfleet import Cluster
from rollfleet_api.permissions import Role

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
OLDER = """
import torch
from torchrl.collectors import MultiSyncDataCollector
from torchrl.envs import GymEnv

torch.set_default_dtype(torch.float64)


class Pendulum(GymEnv):
    def dtype_here(self):
        return str(torch.get_default_dtype())


if __name__ == "__main__":
    collector = MultiSyncDataCollector([lambda: Pendulum("Pendulum-v1")], frames_per_batch=20, total_frames=20)
    print(collector.map_fn("env.dtype_here"))
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
    assert printed(PROGRAM, options, tmp_path) == f"rollfleet {[shape] * 2}"


@pytest.mark.slow
def test_workers_run_the_top_level_of_a_program_that_imports_an_older_name(tmp_path: Path) -> None:
    assert printed(OLDER, [], tmp_path) == "['torch.float64']"


@pytest.mark.slow
def test_a_program_collects_from_a_running_job(server: Server, tmp_path: Path) -> None:
    job = server.own(
        mode="Sync",
        env={"entrypoint": f"{programs.__name__}:pendulum"},
        policy={"entrypoint": f"{programs.__name__}:make_policy"},
        collect={"framesPerBatch": 20},
    )
    worker = server.start_worker(job, 0)
    options = ["--job", job.key, "--nats", server.url(Role.LEARNER)]
    assert printed(PROGRAM.replace("Net()", "nn.Linear(3, 1)"), options, tmp_path) == f"rollfleet {[(20,)] * 2}"
    join_all([worker])


@pytest.mark.slow
def test_options_of_pods_are_those_of_a_cluster(tmp_path: Path) -> None:
    program = "from rollfleet.torchrl.arguments import elsewhere; print(elsewhere)"
    options = ["--workers=3", "--namespace=team", "--gpus=1", "--cpu=2", "--memory=4Gi", "--image=own"]
    cluster = Cluster(namespace="team", gpu=1, cpu="2", memory="4Gi", image="own")
    assert printed(program, options, tmp_path) == str({"workers": 3, "cluster": cluster})


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nofile.py"], 2, "rollfleet.torchrl: error: nofile.py: no such file\n"),
        (["program.py", "--workers=8", "-x"], 0, "--workers=8: passed to program.py; write it before the program"),
    ],
)
def test_a_missing_program_and_an_option_behind_one_are_named(
    arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").touch()
    command = [sys.executable, "-W", "ignore", "-m", "rollfleet.torchrl", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def printed(program: str, options: list[str], folder: Path) -> str:
    (folder / "program.py").write_text(program)
    (folder / "beside.py").write_text(BESIDE)
    command = (sys.executable, "-W", "ignore", "-m", "rollfleet.torchrl", *options, "program.py")
    return output_of(*command, cwd=folder, timeout=110).strip()
