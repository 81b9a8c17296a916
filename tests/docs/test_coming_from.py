"""Every code block of Rollfleet on the pages for users of other libraries runs."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchRL warns about its own classes
    from rollfleet import torchrl

PAGES = ["coming-from-torchrl.md", "coming-from-ray.md", "coming-from-sb3.md", "slurm.md"]
BIN = Path(sys.executable).parent


def page(repository: Path, name: str) -> str:
    return (repository / "docs" / name).read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)


def run(command: list[str], folder: Path) -> str:
    environ = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "RL_WARNINGS": "False"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_each_block_for_users_of_torchrl_runs(number: int, repository: Path, tmp_path: Path) -> None:
    ours = blocks(page(repository, "coming-from-torchrl.md"), "python")
    assert len(ours) == 2
    (tmp_path / "block.py").write_text(ours[number])
    run([sys.executable, "-W", "error", "block.py"], tmp_path)


@pytest.mark.slow
def test_job_and_learner_for_users_of_ray_run_by_their_command(repository: Path, tmp_path: Path) -> None:
    text = page(repository, "coming-from-ray.md")
    (job,), (learner,), (command,) = (blocks(text, language) for language in ("yaml", "python", "bash"))
    (tmp_path / "job.yaml").write_text(job)
    (tmp_path / "learner.py").write_text(learner)
    assert re.search(r"^8192 \{0: \d+, 1: \d+\} \d+$", run(["bash", "-ec", command], tmp_path), re.MULTILINE)


def test_each_block_that_does_not_run_here_says_whose_it_is(repository: Path) -> None:
    for name in PAGES:
        others = blocks(page(repository, name), "py")
        assert all(block.startswith(("# TorchRL", "# Rollfleet, on a cluster")) for block in others), name


def test_the_scripts_for_slurm_are_valid_shell(repository: Path) -> None:
    scripts = blocks(page(repository, "slurm.md"), "bash")
    assert any("#SBATCH" in script for script in scripts)
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("name", torchrl.__all__)
def test_every_name_is_on_the_page_for_users_of_torchrl(name: str, repository: Path) -> None:
    if name in ("DistributedCollector", "DistributedSyncCollector", "RPCCollector"):
        return  # today's names of those on the page
    assert re.search(rf"\b{name}\b", page(repository, "coming-from-torchrl.md"))


def test_the_block_for_users_of_sb3_runs(repository: Path, tmp_path: Path) -> None:
    (block,) = blocks(page(repository, "coming-from-sb3.md"), "python")
    (tmp_path / "block.py").write_text(block)
    assert run([sys.executable, "-W", "error", "block.py"], tmp_path).count("torch.Size([4, 128])") == 4
