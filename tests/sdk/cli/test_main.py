"""Short commands, run in this process."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.api.job_data import job_data
from typer.testing import CliRunner

from rollfleet.cli.main import app

JOB = yaml.safe_dump(job_data({"name": "test"}))


@pytest.fixture
def cli() -> CliRunner:
    return CliRunner()


def test_validate_reads_files_and_standard_input(cli: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    result = cli.invoke(app, ["validate", str(file), "-"], input=JOB.replace("name: test", "name: other"))
    assert result.exit_code == 0
    assert "test is valid" in result.output
    assert "other is valid" in result.output


@pytest.mark.parametrize("text", [f"{JOB}---\n{JOB}", ""])
def test_run_takes_a_file_with_one_job(cli: CliRunner, tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    result = cli.invoke(app, ["run", str(file)])
    assert result.exit_code != 0
    assert not isinstance(result.exception, AssertionError | IndexError)
    assert result.output


def test_plot_draws_a_learning_curve(cli: CliRunner, tmp_path: Path) -> None:
    curve = tmp_path / "curve.csv"
    curve.write_text("frames,mean_return\n64,\n128,10.5\n192,20\n")
    result = cli.invoke(app, ["plot", str(curve)])
    assert result.exit_code == 0
    assert result.output.strip() == str(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    elsewhere = tmp_path / "elsewhere.png"
    assert cli.invoke(app, ["plot", str(curve), "-o", str(elsewhere)]).exit_code == 0
    assert elsewhere.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["", "frames,mean_return\n64,\n", "a,b\n1,2\n"])
def test_plot_reports_a_file_without_values(cli: CliRunner, tmp_path: Path, text: str) -> None:
    curve = tmp_path / "curve.csv"
    curve.write_text(text)
    result = cli.invoke(app, ["plot", str(curve)])
    assert result.exit_code == 1
    assert f"{curve}: no row has a mean return" in result.output
    assert not (tmp_path / "curve.png").exists()


def test_the_command_starts_without_torch() -> None:
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", "import sys, rollfleet.cli.main; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout == "False\n"
