"""Every code block of Rollfleet on the pages for users of other libraries runs."""

import re
import subprocess
import warnings
from pathlib import Path

import pytest
from tests.pages import blocks, blocks_of, shell

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchRL warns about its own classes
    from rollfleet import torchrl

RUN = "RL_WARNINGS=False python -W error block.py"
QUIETLY = """import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchRL warns about its own classes as they are imported
    import rollfleet.torchrl, torchrl.objectives
"""
PAGES = ["coming-from-torchrl.md", "coming-from-ray.md", "coming-from-sb3.md", "slurm.md"]


def page(repository: Path, name: str) -> str:
    return (repository / "docs" / name).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_each_block_for_users_of_torchrl_runs(number: int, repository: Path, tmp_path: Path) -> None:
    ours = blocks_of(repository / "docs" / "coming-from-torchrl.md", "python")
    assert len(ours) == 2
    (tmp_path / "block.py").write_text(QUIETLY + ours[number])
    shell(RUN, tmp_path)


@pytest.mark.slow
def test_job_and_learner_for_users_of_ray_run_by_their_command(repository: Path, tmp_path: Path) -> None:
    text = page(repository, "coming-from-ray.md")
    (job,), (learner,), (command,) = (blocks(text, language) for language in ("yaml", "python", "bash"))
    (tmp_path / "job.yaml").write_text(job)
    (tmp_path / "learner.py").write_text(learner)
    assert re.search(r"^8192 \{0: \d+, 1: \d+\} \d+$", shell(command, tmp_path), re.MULTILINE)


@pytest.mark.slow
def test_the_program_with_torchrls_environments_runs_without_a_guard(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "\n".join(blocks_of(repository / "docs" / "torchrl-environments.md", "python"))
    )
    lines = shell("python program.py", tmp_path).splitlines()
    assert [line.rpartition(" ")[0] for line in lines] == ["(8, 32)"] * 2


def test_each_block_that_does_not_run_here_says_whose_it_is(repository: Path) -> None:
    changed = re.search(r"# was: (.+)", page(repository, "coming-from-torchrl.md"))
    assert changed
    exec(changed[1], {})
    for name in PAGES:
        others = blocks_of(repository / "docs" / name, "py")
        assert all(block.startswith(("# TorchRL", "# Rollfleet, on a cluster")) for block in others), name


def test_the_scripts_for_slurm_are_valid_shell(repository: Path) -> None:
    scripts = blocks_of(repository / "docs" / "slurm.md", "bash")
    assert any("#SBATCH" in script for script in scripts)
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("name", torchrl.__all__)
def test_every_name_is_on_the_page_for_users_of_torchrl(name: str, repository: Path) -> None:
    if name in ("DistributedCollector", "DistributedSyncCollector", "RPCCollector"):
        return  # today's names of those on the page
    assert re.search(rf"\b{name}\b", page(repository, "coming-from-torchrl.md"))


@pytest.mark.slow
def test_the_block_for_users_of_sb3_runs(repository: Path, tmp_path: Path) -> None:
    (block,) = blocks_of(repository / "docs" / "coming-from-sb3.md", "python")
    (tmp_path / "block.py").write_text(block)
    assert shell(RUN, tmp_path).count("torch.Size([4, 128])") == 4
