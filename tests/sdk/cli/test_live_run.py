"""A live run and the folder that it is saved into."""

from pathlib import Path

from rollfleet.cli.live_run import LiveRun
from rollfleet.testing import small_job


def test_runs_of_one_job_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    assert len({LiveRun(small_job(), tmp_path, print).folder for _ in range(10)}) == 10


def test_a_folder_that_cannot_be_made_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    assert not LiveRun(small_job(), tmp_path / "runs", print).folder.exists()
