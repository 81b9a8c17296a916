"""Every block of ours on the pages for those who come from elsewhere is run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollfleet.options import Options

PAGES = ["coming-from-torchrl.md", "coming-from-ray.md", "slurm.md"]
BIN = Path(sys.executable).parent


def page(repository: Path, name: str) -> str:
    return (repository / "docs" / name).read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(command: list[str], folder: Path) -> str:
    environ = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "RL_WARNINGS": "False"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_each_block_for_those_who_come_from_torchrl_runs(number: int, repository: Path, tmp_path: Path) -> None:
    ours = blocks(page(repository, "coming-from-torchrl.md"), "python")
    assert len(ours) == 6
    (tmp_path / "block.py").write_text(ours[number])
    run([sys.executable, "-W", "error", "block.py"], tmp_path)


@pytest.mark.slow
def test_job_and_learner_for_those_who_come_from_ray_run_by_their_command(repository: Path, tmp_path: Path) -> None:
    text = page(repository, "coming-from-ray.md")
    (job,), (learner,), (command,) = (blocks(text, language) for language in ("yaml", "python", "bash"))
    (tmp_path / "job.yaml").write_text(job)
    (tmp_path / "learner.py").write_text(learner)
    assert re.search(r"^8192 \{0: \d+, 1: \d+\} \d+$", run(["bash", "-ec", command], tmp_path), re.MULTILINE)


def test_each_block_that_is_not_ours_says_whose_it_is(repository: Path) -> None:
    for name in PAGES:
        assert all(block.startswith("# TorchRL") for block in blocks(page(repository, name), "py")), name


def test_a_shell_takes_the_scripts_for_slurm(repository: Path) -> None:
    scripts = blocks(page(repository, "slurm.md"), "bash")
    assert any("#SBATCH" in script for script in scripts)
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_every_keyword_is_on_the_page_for_those_who_come_from_torchrl(repository: Path) -> None:
    text = page(repository, "coming-from-torchrl.md")
    # TorchRL has nothing like these.
    elsewhere = {"acknowledge", "precision", "max_batches_ahead", "max_restarts_per_worker", "backend"}
    missing = [name for name in Options.__annotations__ if not re.search(rf"\b{name}\b", text)]
    assert set(missing) <= elsewhere, missing


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str, repository: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page(repository, name)):
        assert (repository / "docs" / link).exists(), link
