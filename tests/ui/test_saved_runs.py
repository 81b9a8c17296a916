"""Saved runs open from their folders, whatever else lies there."""

import os
import stat
import time
from pathlib import Path

import pytest
from tests.ui.run_files import write_run

from rollfleet_ui.saved_runs import CUT, CUT_S, FILE, SavedRuns, write_log
from rollfleet_ui.token_guard import Everything


async def log_of(runs: SavedRuns, key: str, process: str, tail: int = 100, previous: bool = False) -> str:
    return await runs.logs(key, process, previous=previous, tail=tail, viewer=Everything())


async def test_a_run_opens_as_it_was_left(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "cartpole", "20261122-180000", frames=640)
    write_log(folder, "worker 1", "one\ntwo\nthree\udcff")
    write_log(folder, "learner", "learner", previous=True)
    runs = SavedRuns(tmp_path)
    ((key, job),) = runs.jobs().items()
    assert (key, job.row.key, job.row.name) == ("default/cartpole@20261122-180000", key, key.partition("/")[2])
    page = job.page()
    assert (page.row, page.spec) == (job.row, "workers: 2")
    assert page.status.bottleneck == "The learner is the bottleneck."
    assert [each.index for each in job.workers()] == [0, 1, None]
    assert job.history().series["frames"] == [640]
    assert [each.text for each in job.timeline()] == ["created"]
    assert await log_of(runs, key, "worker 1", tail=2) == "two\nthree?"
    assert await log_of(runs, key, "learner", previous=True) == "learner"
    with pytest.raises(LookupError):
        await log_of(runs, key, "worker 0")


async def test_a_log_outside_the_runs_folder_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a key")
    folder = write_run(tmp_path / "runs", "cartpole")
    write_log(folder, "worker 0", "")
    (folder / "logs/worker-1.log").symlink_to(tmp_path / "secret")
    runs = SavedRuns(tmp_path / "runs")
    with pytest.raises(LookupError):
        await log_of(runs, "default/cartpole@1", "worker 1")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/learner.log").write_text("a key")
    other = write_run(tmp_path / "runs", "other")
    (other / "logs").symlink_to(tmp_path / "logs")
    with pytest.raises(LookupError):
        await log_of(runs, "default/other@1", "learner")


def test_only_its_owner_reads_the_folder_of_a_run(tmp_path: Path) -> None:
    assert stat.S_IMODE(write_run(tmp_path, "cartpole").stat().st_mode) == 0o700


def test_runs_of_one_job_are_several_jobs_and_one_folder_can_be_one_run(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "cartpole", "1")
    write_run(tmp_path / "b", "cartpole", "1")
    one = write_run(tmp_path / "a", "cartpole", "2")
    keys = {"default/cartpole@1", "default/cartpole@1-2", "default/cartpole@2"}
    assert SavedRuns(tmp_path).jobs().keys() == keys
    assert SavedRuns(one).jobs().keys() == {"default/cartpole@2"}


def test_the_folder_is_read_again_when_a_run_is_written_or_deleted(tmp_path: Path) -> None:
    runs = SavedRuns(tmp_path)
    assert runs.jobs() == {}
    folder = write_run(tmp_path, "cartpole", frames=64)
    assert [job.row.frames for job in runs.jobs().values()] == [64]
    write_run(tmp_path, "cartpole", frames=128)
    os.utime(folder / FILE, (1, 1))  # another time of writing, whatever the clock's resolution
    (job,) = runs.jobs().values()
    assert job.row.frames == 128
    (folder / FILE).unlink()
    assert runs.jobs() == {}
    with pytest.raises(OSError, match="No such file"):
        job.page()


def test_a_run_that_was_killed_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "cartpole", ended=False)
    runs = SavedRuns(tmp_path)
    (job,) = runs.jobs().values()
    assert (job.row.diagnosis.state, job.row.frames_per_second) == ("Running", 100.0)
    silent_s = time.time() - CUT_S - 1
    os.utime(folder / FILE, (silent_s, silent_s))
    (job,) = runs.jobs().values()
    assert (job.row.diagnosis.state, job.row.frames_per_second) == (CUT, 0.0)
    assert "was killed" in job.page().row.diagnosis.message
    assert job.page().row == job.row


def test_files_that_are_no_run_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path, "good")
    for name, text in (("bad", '{"row": 1}'), ("worse", "no JSON"), ("binary", "\0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_text(text)
    runs = SavedRuns(tmp_path)
    assert runs.jobs().keys() == runs.jobs().keys() == {"default/good@1"}
    assert len(caplog.messages) == 3, "each is named once"
    assert all("\n" not in each and str(tmp_path) in each for each in caplog.messages)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "cartpole", frames=1)
    with (folder / FILE).open() as reader:
        write_run(tmp_path, "cartpole", frames=2)
        assert '"frames":1,' in reader.read()
    assert [file.name for file in folder.iterdir()] == [FILE]
