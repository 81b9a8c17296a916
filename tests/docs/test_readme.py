"""Every command and code block of the README runs."""

import re
from pathlib import Path

import pytest
from tests.pages import blocks_of, shell


def test_every_block_is_of_a_kind_that_tests_run(repository: Path) -> None:
    kinds = re.findall(r"^```(\w+)$", (repository / "README.md").read_text(), re.MULTILINE)
    assert set(kinds) == {"bash", "yaml", "python"}


def test_the_first_two_commands_are_targets_of_the_makefile(repository: Path) -> None:
    commands = blocks_of(repository / "README.md", "bash")
    assert commands[:2] == ["make demo\n", "make test\n"]
    assert "rollfleet run examples/cartpole/job.yaml" in shell("make --dry-run demo", repository)
    assert "pytest" in shell("make --dry-run test", repository)


@pytest.mark.slow
def test_the_job_and_the_learner_run_by_the_commands_below_them(repository: Path, tmp_path: Path) -> None:
    (job,), (learner, _) = blocks_of(repository / "README.md", "yaml"), blocks_of(repository / "README.md", "python")
    (tmp_path / "job.yaml").write_text(job)
    (tmp_path / "learner.py").write_text(learner)
    validate, run = blocks_of(repository / "README.md", "bash")[2:]
    assert "is valid" in shell(validate, tmp_path)
    output = shell(run, tmp_path)
    assert re.search(r"^30720 .*\{0: \d+, 1: \d+\}$", output, re.MULTILINE), output


@pytest.mark.slow
def test_the_collector_without_a_job_runs(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "collector.py").write_text(blocks_of(repository / "README.md", "python")[1])
    assert shell("python collector.py", tmp_path).count("torch.Size([8, 128])") == 10
