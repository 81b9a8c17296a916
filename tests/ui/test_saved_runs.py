"""Saved runs open from their folders, whatever else lies there."""

import os
import time
from pathlib import Path

import pytest
from tests.ui.run_files import write_run

from rollfleet_ui.model import SERIES
from rollfleet_ui.run_folder import PAGE, RunFolder
from rollfleet_ui.saved_runs import CUT, CUT_S, SavedRuns
from rollfleet_ui.token_guard import Everything


async def log_of(runs: SavedRuns, key: str, worker: int | None, tail: int = 100, previous: bool = False) -> str:
    return await runs.logs(key, worker, previous=previous, tail=tail, viewer=Everything())


async def test_a_run_opens_as_it_was_left(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "cartpole", "20261122-180000", frames=640)
    folder.write_log(1, "one\ntwo\nthree\udcff")
    folder.write_log(None, "learner", previous=True)
    runs = SavedRuns(tmp_path)
    (row,) = runs.jobs()
    assert (row.key, row.name, row.frames) == ("default/cartpole@20261122-180000", "cartpole@20261122-180000", 640)
    page = runs.job(row.key)
    assert page
    assert (page.row, page.spec, page.bottleneck) == (row, "workers: 2", "The learner is the bottleneck.")
    assert [each.index for each in runs.workers(row.key)] == [0, 1, None]
    assert runs.history(row.key).series["frames"] == [640]
    assert [each.text for each in runs.timeline(row.key)] == ["created"]
    assert await log_of(runs, row.key, 1, tail=2) == "two\nthree?"
    assert await log_of(runs, row.key, None, previous=True) == "learner"
    with pytest.raises(LookupError):
        await log_of(runs, row.key, 0)


def test_runs_of_one_job_are_several_jobs_and_one_folder_can_be_one_run(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "cartpole", "1")
    write_run(tmp_path / "b", "cartpole", "1")
    one = write_run(tmp_path / "a", "cartpole", "2")
    keys = {row.key for row in SavedRuns(tmp_path).jobs()}
    assert keys == {"default/cartpole@1", "default/cartpole@1-2", "default/cartpole@2"}
    assert [row.key for row in SavedRuns(one.path).jobs()] == ["default/cartpole@2"]


def test_changes_in_the_folder_are_reported(tmp_path: Path) -> None:
    runs = SavedRuns(tmp_path)
    changed: list[str] = []
    unsubscribe = runs.subscribe(changed.append)
    folder = write_run(tmp_path, "cartpole", frames=64)
    runs.look()
    runs.look()
    assert changed == ["default/cartpole@1"]
    write_run(tmp_path, "cartpole", frames=128)
    os.utime(folder.path / PAGE, (1, 1))  # another time of writing, whatever the clock's resolution
    runs.look()
    assert [row.frames for row in runs.jobs()] == [128]
    for file in folder.path.rglob("*.*"):
        file.unlink()
    runs.look()
    assert changed == ["default/cartpole@1"] * 3
    assert runs.jobs() == []
    assert runs.job("default/cartpole@1") is None
    unsubscribe()
    write_run(tmp_path, "other")
    runs.look()
    assert len(changed) == 3


def test_a_run_that_was_killed_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "cartpole", ended=False)
    runs = SavedRuns(tmp_path)
    (row,) = runs.jobs()
    assert (row.state, row.frames_per_second) == ("Running", 100.0)
    silent_s = time.time() - CUT_S - 1
    os.utime(folder.path / PAGE, (silent_s, silent_s))
    runs.look()
    (row,) = runs.jobs()
    assert (row.state, row.frames_per_second) == (CUT, 0.0)
    page = runs.job(row.key)
    assert page
    assert "was killed" in page.diagnosis.message
    assert page.row == row


def test_files_that_are_no_run_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path, "good")
    for name, text in (("bad", '{"row": 1}'), ("worse", "no JSON"), ("binary", "\0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / PAGE).write_text(text)
    runs = SavedRuns(tmp_path)
    runs.look()
    assert [row.name for row in runs.jobs()] == ["good@1"]
    assert len(caplog.messages) == 3, "each is named once"
    assert all("\n" not in each and str(tmp_path) in each for each in caplog.messages)


def test_a_run_whose_parts_are_broken_shows_the_rest(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "cartpole")
    (folder.path / "history.json.gz").write_bytes(b"\x1f\x8bno")
    (folder.path / "workers.json").write_text("[{]")
    runs = SavedRuns(tmp_path)
    (row,) = runs.jobs()
    history = runs.history(row.key)
    assert (history.time, history.series) == ([], {name: [] for name in SERIES})
    assert runs.timeline(row.key) == []
    assert runs.workers(row.key) == []


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "cartpole", frames=1)
    with (folder.path / PAGE).open() as reader:
        write_run(tmp_path, "cartpole", frames=2)
        assert '"frames":1,' in reader.read()
    assert RunFolder(folder.path).page().row.frames == 2
    assert not [file.name for file in folder.path.iterdir() if file.name.endswith(".new")]
