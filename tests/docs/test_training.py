"""The page about trackers, checkpoints, evaluation and play: its learner runs, resumes, and its policy plays."""

import re
from pathlib import Path

import pytest
from tests.pages import blocks_of, shell


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_learner_of_the_page_is_tracked_resumes_and_plays(repository: Path, tmp_path: Path) -> None:
    page = repository / "docs/training.md"
    (tmp_path / "job.yaml").write_text(blocks_of(page, "yaml")[0])
    (learner, *_), (commands,) = (
        blocks_of(repository / "docs/training.md", "python"),
        blocks_of(repository / "docs/training.md", "bash"),
    )
    (tmp_path / "learner.py").write_text(learner)

    install, run, play = commands.splitlines()
    assert install == "pip install tensorboard"
    for last in (5, 6):  # each tenth of 40 batches, and one at the end; then only the one at the end
        shell(run, tmp_path)
        kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
        assert kept == {f"checkpoint-{number}.pt" for number in range(last - 2, last + 1)}
    assert list((tmp_path / "runs" / "tracked").glob("events.*"))
    assert re.search(
        r"^episode 2: return \d+\.\d, \d+ frames\nmean return \d+\.\d$", shell(play, tmp_path), re.MULTILINE
    )
    assert (tmp_path / "play.gif").read_bytes().startswith(b"GIF89a")


def test_the_evaluations_and_the_curriculum_of_the_page_run(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, evaluated, curriculum = blocks_of(repository / "docs/training.md", "python")
    exec(evaluated, {})  # the repository's own page
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["2", "4"]
    exec(curriculum, {})
    assert 1 < int(capsys.readouterr().out) < 5
