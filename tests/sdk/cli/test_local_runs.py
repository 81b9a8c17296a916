"""`describe`, `logs` and `top` of saved runs: the commands of a cluster's jobs, without a cluster."""

import os
from pathlib import Path

import pytest
from tests.ui.run_files import write_run
from typer.testing import CliRunner

from rollfleet.cli.local_runs import runs_in
from rollfleet.cli.main import app
from rollfleet_ui.saved_runs import FILE, write_log


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of one job, without a kubeconfig; of the later one the workers' logs were saved."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    write_run(tmp_path / "runs", "cartpole", "1", frames=64)
    later = write_run(tmp_path / "runs", "cartpole", "2", frames=128, created_s=1_700_000_050.0)
    write_log(later, "worker 1", "one\ntwo\n")
    return tmp_path / "runs"


def lines(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.output.splitlines()]


def test_the_newest_run_of_a_folder_is_described_as_a_clusters_job_is(runs: Path) -> None:
    shown = lines("describe", str(runs / "cartpole"))
    assert shown[0] == "default/cartpole@2 is Complete"
    assert "Workers 2 of 2 ready, 0 restarts" in shown
    assert "Frames 128, 0/s" in shown
    assert "Bottleneck The learner is the bottleneck." in shown
    assert shown[-1].endswith("Created run/cartpole@2 created")


def test_the_saved_ends_of_logs_are_shown(runs: Path) -> None:
    assert lines("logs", str(runs)) == ["[worker 1] one", "[worker 1] two"]
    assert lines("logs", str(runs), "--worker", "1", "--tail", "1") == ["[worker 1] two"]
    missing = CliRunner().invoke(app, ["logs", str(runs), "--learner"])
    assert "no log of learner is saved in" in missing.output
    refused = CliRunner().invoke(app, ["logs", str(runs), "--follow"]).output
    assert f"the folder {runs} has saved runs: leave out --follow and --container, or name a cluster's job" in refused


def test_top_shows_all_runs_of_a_folder(runs: Path) -> None:
    head, first, second = lines("top", str(runs))
    assert head.startswith("job phase workers frames")
    assert (first.split()[:4], second.split()[:4]) == (
        ["default/cartpole@1", "Complete", "2/2", "64"],
        ["default/cartpole@2", "Complete", "2/2", "128"],
    )


def test_a_run_that_has_not_changed_is_read_once(runs: Path) -> None:
    def frames() -> list[int]:
        return [run.row.frames for run in runs_in(str(runs))]

    assert frames() == [64, 128]
    file = runs / "cartpole" / "1" / FILE
    written_ns = file.stat().st_mtime_ns
    file.write_text("no run")
    os.utime(file, ns=(written_ns, written_ns))
    assert frames() == [64, 128]
