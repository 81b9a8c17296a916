"""A collector of `rollfleet.torchrl` as the learner of a running job."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sdk.cli.program import Workplace

TASK = """
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv


def make_one():
    return TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())


def make_two():
    return SerialEnv(2, make_one)


def make_policy(*_):
    torch.manual_seed(0)
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
"""
LEARNER = """
import os
import torch
from rollfleet.torchrl import MultiSyncDataCollector
from task import {make}, make_policy

policy = make_policy()
collector = MultiSyncDataCollector(
    [{make}] * 2, policy, frames_per_batch=100, total_frames=-1, job=os.environ["ROLLFLEET_JOB"],
    update_at_each_batch=True,
)
for batch in collector:
    acted = policy.module(batch["observation"])
    print(batch.shape, torch.allclose(acted, batch["action"], atol=1e-5))
    with torch.no_grad():
        policy.module.bias += 1
collector.shutdown()
"""


@pytest.mark.parametrize(
    ("envs", "joined", "shape"),
    [(2, "Stack", [2, 2, 25]), (2, "Envs", [4, 25]), (2, "Time", [2, 50]), (1, "Envs", [100])],
)
def test_a_jobs_batches_have_torchrls_shape_until_the_job_ends(
    workplace: "Workplace", envs: int, joined: str, shape: list[int]
) -> None:
    make = "make_one" if envs == 1 else "make_two"
    workplace.write("task.py", TASK)
    workplace.write("learner.py", LEARNER.replace("{make}", make))
    workplace.write_job(
        mode="Sync",
        workers=2,
        env={"entrypoint": f"task:{make}", "numEnvs": envs},
        policy={"entrypoint": "task:make_policy"},
        collect={"framesPerBatch": 100, "totalFrames": 400, "catResults": joined},
    )
    program = workplace.run("--learner", "learner.py")
    assert program.wait() == 0, program.output
    lines = [line for line in program.output.splitlines() if line.startswith("torch")]
    assert lines == [f"torch.Size({shape}) True"] * 4, program.output
    workplace.assert_nothing_is_left()
