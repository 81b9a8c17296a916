"""Exit codes are those of docs/exit-codes.md, and each error is one line."""

import os
import re
from pathlib import Path

import pytest
import yaml
from tests.api.job_data import job_data
from typer.testing import CliRunner

from rollfleet.cli import main
from rollfleet.cli.main import app
from rollfleet.recording import recorder
from rollfleet_api import exit_codes

JOB = yaml.safe_dump(job_data({"name": "test"}, policy={"random": {}}))


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Run commands in a folder with a job, without an address of NATS and of a cluster."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "learner.py").write_text("")
    (tmp_path / "wrong.yaml").write_text(JOB.replace("framesPerBatch", "frames"))
    (tmp_path / "two.yaml").write_text(f"{JOB}---\n{JOB.replace('name: test', 'name: other')}")
    (tmp_path / "none.yaml").write_text("")
    (tmp_path / "unknown.yaml").write_text(JOB.replace("CartPole-v1", "CartPol-v1"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.csv").write_text("frames,mean_return\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [each for each in os.environ if each.startswith(("KUBE", "ROLLFLEET_", "JOB_"))]:
        monkeypatch.delenv(name)
    return CliRunner()


@pytest.fixture
def table(repository: Path) -> dict[str, set[str]]:
    """Read the codes of each command from the page."""
    found: dict[str, set[str]] = {}
    for command, codes in re.findall(
        r"^\| `?(\w+)`? \| ([\d, ]+) \|", (repository / "docs/exit-codes.md").read_text(), re.MULTILINE
    ):
        found.setdefault(command, set()).update(codes.split(", "))
    return found


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("validate job.yaml", 0, "job.yaml:1: test is valid"),
        ("validate -", 0, "standard input:1: test is valid"),
        ("validate wrong.yaml", 1, "spec.collect"),
        ("run wrong.yaml", 1, "spec.collect"),
        ("run binary.yaml", 1, "not text in UTF-8: byte 0xff at position 0"),
        ("run two.yaml", 1, "has 2 jobs; put each into its own file"),
        ("run none.yaml", 1, "none.yaml: empty; expected a CollectorJob"),
        ("run unknown.yaml", 1, "unknown.yaml: spec.env.id: `CartPol-v1` is not a registered environment: "),
        ("plot empty.csv", 1, "no row has a mean return"),
        ("worker --job test --index 0", 2, "no NATS server given: pass its URL, set ROLLFLEET_NATS_URL"),
        ("worker --nats nats://127.0.0.1:1 --index 0", 2, "no job given: pass its name, set ROLLFLEET_JOB"),
        ("worker --nats nats://127.0.0.1:1 --job test", 2, "no worker index given: pass --index"),
        ("worker --job A_B --index 0 --nats nats://127.0.0.1:1", 2, "A_B"),
        ("record test", 1, "no NATS server given: pass its URL, set ROLLFLEET_NATS_URL"),
        ("record test --segment-size many", 2, "`many` is not a quantity"),
        ("ui . --namespace rollfleet", 2, "FOLDER takes no cluster"),
        ("top", 1, "no cluster is named"),
        ("submit job.yaml", 1, "no cluster is named"),
        ("submit job.yaml --nats nats://127.0.0.1:1 --follow", 2, "--nats takes no cluster"),
        ("submit job.yaml --nats nats://127.0.0.1:1 --learner learner.py", 2, "start the learner yourself"),
        ("submit job.yaml learner.py -- --lr 1", 2, "a learner is named by --learner"),
        ("submit job.yaml --credentials job.yaml", 2, "--credentials are those of --nats"),
        ("run job.yaml learner.py", 2, "a learner is named by --learner"),
        ("init new --example foo", 2, "Invalid value for '--example': 'foo' is not one of"),
        ("runn", 2, "rollfleet: No such command 'runn'. Did you mean 'run'?; see `rollfleet --help`"),
        ("run", 2, "see `rollfleet run --help`"),
        ("run nowhere.yaml", 2, "nowhere.yaml"),
        ("run job.yaml --workers 0", 2, "--workers"),
        ("run job.yaml --workers 1000000", 1, "spec.workers"),
        ("plot nowhere.csv", 2, "nowhere.csv"),
        ("run job.yaml --ui-port 8000", 2, "Invalid value for --ui-port: there is no page: add --ui; see"),
        ("plot --no-such-option empty.csv", 2, "--no-such-option"),
    ],
)
def test_a_command_ends_with_a_documented_code_and_an_error_of_lines_without_a_traceback(
    cli: CliRunner, table: dict[str, set[str]], command: str, code: int, text: str
) -> None:
    result = cli.invoke(app, command.split(), prog_name="rollfleet", input=JOB)
    assert result.exit_code == code, result.output
    assert text in result.output
    assert "Traceback" not in result.output
    assert str(code) in table["all"] | table.get(command.split()[0], set())
    if code and "wrong.yaml" not in command:  # a job has a line for each mistake
        assert len(result.output.splitlines()) == 1, result.output


def test_the_codes_of_a_worker_are_documented(table: dict[str, set[str]]) -> None:
    codes = {str(value) for name, value in vars(exit_codes).items() if name.startswith("EXIT_")}
    assert table["worker"] == codes


def test_verbose_shows_the_traceback_before_the_line(cli: CliRunner) -> None:
    result = cli.invoke(app, ["--verbose", "record", "test"])
    assert result.exit_code == 1
    first, *_, last = result.output.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last.startswith("no NATS server given")


def test_a_defect_is_one_line_that_asks_for_a_report(cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr(recorder, "record", fail)
    monkeypatch.setenv("ROLLFLEET_NATS_URL", "nats://nowhere")
    result = cli.invoke(app, ["record", "test"])
    assert result.exit_code == 1
    assert result.output == (
        "KeyError: 'no such thing'; this is a defect of Rollfleet: "
        "run the command as `rollfleet --verbose ...`, and report the traceback\n"
    )


def test_ctrl_c_is_130(cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recorder, "record", interrupt)
    monkeypatch.setenv("ROLLFLEET_NATS_URL", "nats://nowhere")
    assert cli.invoke(app, ["record", "test"]).exit_code == 130


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(cli: CliRunner, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_ROLLFLEET_COMPLETE", f"complete_{shell}")
    typed = {"_TYPER_COMPLETE_ARGS": "rollfleet de", "COMP_WORDS": "rollfleet de", "COMP_CWORD": "1"}
    for name, value in (typed | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}).items():
        monkeypatch.setenv(name, value)
    assert "describe" in cli.invoke(app, [], prog_name="rollfleet").output


def test_the_plugin_of_kubectl_offers_no_completion_of_its_own(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for program, offered in (("kubectl-rollfleet", False), ("rollfleet", True)):
        monkeypatch.setattr("sys.argv", [program, "--help"])
        with pytest.raises(SystemExit, match="0"):
            main.main()
        assert ("--install-completion" in capsys.readouterr().out) is offered
