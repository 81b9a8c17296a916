"""A live run and the folder that it is saved into."""

import asyncio
from pathlib import Path

import pytest

from rollfleet.cli.live_run import LiveRun
from rollfleet.testing import small_job
from rollfleet_api.messages import LearnerStatus


async def _end() -> int:
    return 0


def run_in(runs: Path) -> LiveRun:
    live = LiveRun(small_job(), runs, print)
    asyncio.run(live.until_end(_end()))
    return live


def test_runs_of_one_job_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    assert len({run_in(tmp_path).folder for _ in range(10)}) == 10


def test_a_folder_that_cannot_be_made_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for runs in ("file", "dangling", "loop"):
        assert not run_in(tmp_path / runs).folder.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_return_that_json_cannot_hold_is_unknown(tmp_path: Path, value: float) -> None:
    live = LiveRun(small_job(), tmp_path, print)
    live.watch.learner = LearnerStatus(
        session=1, version=3, applied_version=1, frames=640, batches=10, mean_return=value
    )
    live.look()
    ((_, record),) = live.jobs().items()
    page = record.page()
    assert (page.status.mean_return, page.row.lag) == (None, 2)
    assert '"frames":640' in page.status.model_dump_json()
