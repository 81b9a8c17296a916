"""A learner outside of the cluster, with the rights of `rollfleet-user` alone."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml
from tests.api.job_data import job_data
from tests.cluster.lab import Lab, user
from tests.notebooks import shown_by
from tests.running import running
from tests.waiting import wait_until

from rollfleet import Cluster, Jobs, make_vec

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

TORCHRL = """
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, StepCounter, TransformedEnv


def make_env():
    return TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())


policy = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
collector = Collector(make_env, policy, frames_per_batch=100, total_frames=400)
for batch in collector:
    print(batch.shape)
    with torch.no_grad():
        policy.module.bias += 1
    collector.update_policy_weights_()
difference = batch["action"] - policy.module(batch["observation"])  # the last batch had one update less
print(torch.allclose(difference, -torch.ones_like(difference), atol=1e-4))
collector.shutdown()
"""

KEEPING = """
from pathlib import Path

import rollfleet

with rollfleet.connect(policy=None) as collector:
    for batch in collector:
        print(batch.shape)
    Path("runs").mkdir()
    Path("runs/policy.txt").write_text("trained")
"""


@pytest.fixture
def as_user(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The kubeconfig of a user who may do only what a learner outside of the cluster needs."""
    path = tmp_path / "kubeconfig"
    with user(lab, "outside", path), monkeypatch.context() as patch:
        patch.setenv("KUBECONFIG", str(path))
        yield path


def test_one_program_trains_on_the_cluster_and_leaves_nothing(lab: Lab, repository: Path, as_user: Path) -> None:
    program = [sys.executable, str(repository / "examples/anywhere.py"), "--frames=2048", "--workers=2"]
    done = subprocess.run([*program, f"--namespace={lab.namespace}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2,048 frames" in done.stdout
    assert "2 of 2 workers are ready" in done.stderr
    wait_until(lambda: not Jobs().list(), timeout_s=60)


@pytest.mark.slow
def test_the_notebook_trains_on_the_cluster_and_explains_its_job(
    lab: Lab, repository: Path, as_user: Path, tmp_path: Path
) -> None:
    shown = shown_by(repository / "docs/notebooks/cluster.ipynb", tmp_path)
    assert "2 of 2 workers are ready" in shown
    assert " 10,240 frames  mean return" in shown
    assert re.search(r"^Complete \d+$", shown, re.MULTILINE), shown
    wait_until(lambda: not Jobs().list(), timeout_s=60)


def test_a_vector_steps_environments_in_pods_and_leaves_nothing(lab: Lab, as_user: Path) -> None:
    place = Cluster(namespace=lab.namespace)
    envs = make_vec("CartPole-v1", num_envs=4, workers=2, cluster=place)
    here = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="sync")
    np.testing.assert_equal(envs.reset(seed=0)[0], here.reset(seed=0)[0])
    for _ in range(30):
        np.testing.assert_equal(envs.step([0, 1, 0, 1])[:4], here.step(np.array([0, 1, 0, 1]))[:4])
    assert lab.logs("env-server").count(": 2 environments") == 2
    envs.close()
    here.close()
    wait_until(lambda: not Jobs().list(), timeout_s=60)


def test_a_program_that_is_killed_leaves_nothing(lab: Lab, as_user: Path) -> None:
    place = Cluster(name="killed", learner_timeout_s=10)
    program = (
        "import rollfleet\n"
        f"place = rollfleet.{place!r}\n"
        "collector = rollfleet.Collector('CartPole-v1', frames_per_batch=8, workers=1, cluster=place)\n"
        "for batch in collector:\n"
        "    print(batch.numel(), flush=True)\n"
    )
    with running(sys.executable, "-c", program, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "8\n"
    wait_until(lambda: Jobs().get("killed").status.phase == "Failed", timeout_s=120)
    wait_until(lambda: not lab.pods("worker"), timeout_s=120)


def test_a_program_of_torchrl_trains_in_pods_unchanged(lab: Lab, as_user: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TORCHRL)
    command = [sys.executable, "-W", "ignore", "-m", "rollfleet.torchrl", "--workers=2", f"--namespace={lab.namespace}"]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.Size([2, 50])\n" * 4 + "True\n"
    wait_until(lambda: not Jobs().list(), timeout_s=60)


@pytest.mark.skipif(os.environ.get("VOLUMES") != "true", reason="this cluster has no class of volumes")
def test_a_learners_files_are_fetched_after_its_end(lab: Lab, as_user: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KEEPING)
    collect = {"framesPerBatch": 64, "totalFrames": 64}
    job = job_data({"name": "keeping"}, policy={"random": {}}, collect=collect)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    for command in (
        ["submit", "job.yaml", "--learner", "train.py", "--keep", "16Mi", "--follow"],
        ["fetch", "keeping", "--to", "mine"],
    ):
        program = [sys.executable, "-m", "rollfleet", *command]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine/runs/policy.txt").read_text() == "trained"
    assert [job.metadata.name for job in Jobs().list()] == ["keeping"]
    Jobs().delete("keeping")
    wait_until(lambda: not lab.kubectl("get", "persistentvolumeclaims", "--output=name"), timeout_s=120)
