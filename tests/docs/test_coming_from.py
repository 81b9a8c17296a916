"""Every code block of Rollfleet on the pages for users of other libraries runs."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollfleet import Collector
from rollfleet.learner.torchrl_names import ABSENT, RENAMED

PAGES = ["coming-from-torchrl.md", "coming-from-ray.md", "slurm.md"]
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
@pytest.mark.parametrize("number", range(6))
def test_each_block_for_users_of_torchrl_runs(number: int, repository: Path, tmp_path: Path) -> None:
    ours = blocks(page(repository, "coming-from-torchrl.md"), "python")
    assert len(ours) == 6
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


def test_every_keyword_is_on_the_page_for_users_of_torchrl(repository: Path) -> None:
    text = page(repository, "coming-from-torchrl.md")
    # TorchRL has no counterpart of these.
    elsewhere = {"acknowledge", "precision", "max_batches_ahead", "backend"}
    elsewhere |= {"max_restarts_per_worker", "suspect_after_s", "cluster", "evaluation"}
    missing = [name for name in inspect.signature(Collector).parameters if not re.search(rf"\b{name}\b", text)]
    assert set(missing) <= elsewhere, missing


THEIRS = """
SyncDataCollector Collector MultiSyncDataCollector MultiaSyncDataCollector aSyncDataCollector
DistributedDataCollector DistributedSyncDataCollector RPCDataCollector RayCollector submitit_delayed_launcher
RandomPolicy split_trajectories frames_per_batch total_frames max_frames_per_traj init_random_frames
reset_at_each_iter reset_when_done split_trajs postproc exploration_type set_truncated cat_results device
storing_device env_device policy_device no_cuda_sync policy policy_factory trust_policy create_env_fn
create_env_kwargs update_at_each_batch update_after_each_batch max_weight_update_interval
update_policy_weights_ weights worker_ids model_id weights_dict receive_weights weight_sync_schemes
weight_recv_schemes register_scheme_receiver cascade_execute start async_shutdown replay_buffer pause set_seed
static_seed state_dict load_state_dict add_collectors remote_collectors num_workers_per_collector worker_idx
remote_configs shutdown preemptive_threshold filter_warnings_subprocess
"""


def test_every_name_of_torchrls_collectors_is_on_the_page(
    repository: Path,
) -> None:
    text = page(repository, "coming-from-torchrl.md")
    rows = [line for line in text.splitlines() if line.startswith(("| ", "###"))]
    assert [name for name in THEIRS.split() if not re.search(rf"\b{name}\b", "\n".join(rows))] == []


def rows_of(repository: Path) -> list[list[str]]:
    """Return the cells of the page's tables, with the names of TorchRL in the first."""
    lines = [line for line in page(repository, "coming-from-torchrl.md").splitlines() if line.startswith("| `")]
    return [line.strip("|").split(" | ") for line in lines]


@pytest.mark.parametrize("name", RENAMED)
def test_the_hint_for_a_name_of_torchrl_is_in_its_row(name: str, repository: Path) -> None:
    (row,) = (row for row in rows_of(repository) if f"`{name}`" in row[0])
    assert f"`{RENAMED[name]}" in row[1]


@pytest.mark.parametrize("name", ABSENT)
def test_the_hint_for_a_name_without_counterpart_is_in_its_row(name: str, repository: Path) -> None:
    (row,) = (row for row in rows_of(repository) if f"`{name}`" in row[0])
    assert row[1].strip().startswith(ABSENT[name])


def test_every_row_of_the_page_about_another_name_is_hinted(repository: Path) -> None:
    names = {
        name
        for row in rows_of(repository)
        if not row[1].startswith("the same")
        for name in re.findall(r"`([a-z_]+)`", row[0])
    }
    keywords = {*inspect.signature(Collector).parameters, *RENAMED, *ABSENT}
    no_keywords = {
        "pause",
        "shutdown",
        "receive_weights",
        "register_scheme_receiver",
        "cascade_execute",
        "add_collectors",
    }
    no_keywords |= {"remote_collectors", "worker_idx", "submitit_delayed_launcher", "init_updater"}
    no_keywords |= {"map_fn", "get_distant_attr", "enable_profile"}
    assert names - keywords - no_keywords == set()
