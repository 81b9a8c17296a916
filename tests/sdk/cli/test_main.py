"""Short commands, run in this process."""

import sys
from pathlib import Path

from tests.running import output_of
from typer.testing import CliRunner

from rollfleet.cli.main import app

CLI = CliRunner()


def test_plot_draws_a_learning_curve(tmp_path: Path) -> None:
    curve = tmp_path / "curve.csv"
    curve.write_text("frames,mean_return\n64,\n128,10.5\n192,20\n")
    result = CLI.invoke(app, ["plot", str(curve)])
    assert result.exit_code == 0
    assert result.output.strip() == str(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    elsewhere = tmp_path / "elsewhere.png"
    assert CLI.invoke(app, ["plot", str(curve), "-o", str(elsewhere)]).exit_code == 0
    assert elsewhere.read_bytes().startswith(b"\x89PNG")


def test_the_command_starts_without_torch() -> None:
    program = "import sys, rollfleet.cli.main; print('torch' in sys.modules)"
    assert output_of(sys.executable, "-P", "-c", program) == "False\n"
