"""The page about trackers, checkpoints, evaluation and play: its learner runs, resumes, and its policy plays."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def blocks(repository: Path, language: str) -> list[str]:
    text = (repository / "docs" / "training.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_learner_of_the_page_is_tracked_resumes_and_plays(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(blocks(repository, "yaml")[0])
    (learner, _), (commands,) = blocks(repository, "python"), blocks(repository, "bash")
    (tmp_path / "learner.py").write_text(learner)

    def shell(command: str) -> str:
        environ = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-ec", command], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    install, run, play = commands.splitlines()
    assert install == "pip install tensorboard"
    for last in (5, 6):  # each tenth of 40 batches, and one at the end; then only the one at the end
        shell(run)
        kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
        assert kept == {f"checkpoint-{number}.pt" for number in range(last - 2, last + 1)}
    assert list((tmp_path / "runs" / "tracked").glob("events.*"))
    assert re.search(r"^episode 2: return \d+\.\d, \d+ frames\nmean return \d+\.\d$", shell(play), re.MULTILINE)
    assert (tmp_path / "play.gif").read_bytes().startswith(b"GIF89a")


def test_the_evaluations_of_the_page_are_printed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, evaluated = blocks(repository, "python")
    exec(evaluated, {})  # the repository's own page
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["2", "4"]
