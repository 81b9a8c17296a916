"""A collector of `rollfleet.torchrl` as the learner of a running job."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sdk.cli.program import Workplace

TASK = """
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv


def make_env():
    return SerialEnv(2, lambda: TransformedEnv(GymEnv("Pendulum-v1"), StepCounter()))


def make_policy(*_):
    torch.manual_seed(0)
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
"""
LEARNER = """
import os
import torch
from rollfleet.torchrl import MultiSyncDataCollector
from task import make_env, make_policy

policy = make_policy()
collector = MultiSyncDataCollector(
    [make_env] * 2, policy, frames_per_batch=100, total_frames=-1, job=os.environ["ROLLFLEET_JOB"],
    update_at_each_batch=True,
)
for batch in collector:
    acted = policy.module(batch["observation"])
    print(batch.shape, torch.allclose(acted, batch["action"], atol=1e-5))
    with torch.no_grad():
        policy.module.bias += 1
collector.shutdown()
"""


def test_a_jobs_batches_have_torchrls_shape_until_the_job_ends(workplace: "Workplace") -> None:
    workplace.write("task.py", TASK)
    workplace.write("learner.py", LEARNER)
    workplace.write_job(
        mode="Sync",
        workers=2,
        env={"entrypoint": "task:make_env", "numEnvs": 2},
        policy={"entrypoint": "task:make_policy"},
        collect={"framesPerBatch": 100, "totalFrames": 400, "catResults": "Stack"},
    )
    program = workplace.run("--learner", "learner.py")
    assert program.wait() == 0, program.output
    lines = [line for line in program.output.splitlines() if line.startswith("torch")]
    assert lines == ["torch.Size([2, 2, 25]) True"] * 4, program.output
    workplace.assert_nothing_is_left()
