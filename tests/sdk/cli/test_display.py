"""`rollfleet run` shows a job from the job's heartbeats."""

import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console
from tests.job_server import Server
from tests.waiting import wait_until

from rollfleet.cli.display import Display
from rollfleet.cli.watch import JobWatch
from rollfleet.nats.link import Link
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus, pack
from rollfleet_api.permissions import Role

LEARNER = LearnerStatus(
    session=1, version=7, applied_version=6, frames=12_800, batches=100, dropped=3, mean_return=123.45, lag=2
)
WORKER = WorkerStatus(
    worker=0, incarnation=0, state=WorkerState.COLLECTING, version=6, frames=6_400, batches=50, frames_per_second=1234.5
)


class Watched:
    """A job whose heartbeats are sent by the test."""

    def __init__(self, server: Server) -> None:
        self.job: CollectorJob = server.own(workers=2, collect={"framesPerBatch": 64, "totalFrames": 100_000})
        link = server.link()
        self.watch = JobWatch(self.job)
        self.watch.listen(link)
        link.call(link.flush())
        self._sender: Link = server.link()

    def send(self, message: LearnerStatus | WorkerStatus, seen: Callable[[], bool]) -> None:
        subjects = self._sender.subjects
        subject = subjects.learner(0, 1) if isinstance(message, LearnerStatus) else subjects.worker(message.worker)
        self._sender.call(self._sender.publish(subject, pack(message)))
        wait_until(seen)


@pytest.fixture
def watched(server: Server) -> Watched:
    watched = Watched(server)
    watch = watched.watch
    watched.send(WORKER, lambda: 0 in watch.workers)
    failed = WorkerStatus(worker=1, incarnation=4, state=WorkerState.FAILED, mean_return=-1.5, error="OSError: gone")
    watched.send(failed, lambda: 1 in watch.workers)
    return watched


def _shown(watched: Watched, *, terminal: bool, **options: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=160, color_system=None, legacy_windows=False)
    display = Display(console)
    with display.showing(watched.watch, **options):
        display.output("learner", "loss [0.5] [red]low[/red]")
        display.output("worker 1", "as it is")
        display.error("worker 1 ended")
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())  # without escape sequences


def test_without_a_terminal_there_are_plain_lines(watched: Watched) -> None:
    watched.send(LEARNER, lambda: watched.watch.learner is not None)
    *lines, last = _shown(watched, terminal=False).splitlines()
    assert lines == ["loss [0.5] [red]low[/red]", "[worker 1] as it is", "worker 1 ended"]
    assert last == (
        "test: 12,800 frames (0/s), 100 batches, mean return 123.5, version 7, lag 2, dropped 3; "
        "workers: 0 Collecting, 1 Failed; worker 1 failed: OSError: gone"
    )


def test_a_status_that_has_not_changed_is_shown_once(watched: Watched) -> None:
    file = io.StringIO()
    display = Display(Console(file=file, width=160))
    for _ in range(2):
        with display.showing(watched.watch):
            pass
    assert file.getvalue().count("test: no batch yet") == 1


def test_before_the_first_batch_workers_are_shown_and_an_error_only_if_their_output_is_not(watched: Watched) -> None:
    states = "test: no batch yet; workers: 0 Collecting, 1 Failed"
    assert _shown(watched, terminal=False).splitlines()[-1] == f"{states}; worker 1 failed: OSError: gone"
    assert _shown(watched, terminal=False, has_output=True).splitlines()[-1] == states


def test_a_terminal_shows_a_table_with_a_row_for_each_worker(watched: Watched) -> None:
    watched.send(LEARNER, lambda: watched.watch.learner is not None)
    shown = _shown(watched, terminal=True)
    assert "loss [0.5] [red]low[/red]" in shown
    *_, head, names, first, second, problem = (line.split() for line in shown.splitlines() if line.strip())
    assert " ".join(head) == (
        "test 12,800 of 100,000 frames 0/s 100 batches mean return 123.5 version 7 lag 2 dropped 3"
    )
    assert names == ["worker", "state", "version", "frames", "frames/s", "mean", "return", "starts"]
    assert first == ["0", "Collecting", "6", "6,400", "1,234", "-", "1"]
    assert second[:2] == ["1", "Failed"]
    assert second[-2:] == ["-1.5", "5"]
    assert " ".join(problem) == "worker 1 failed: OSError: gone"


def test_frames_per_second_follow_from_the_learners_heartbeats(watched: Watched) -> None:
    watch = watched.watch
    assert watch.frames_per_second == 0.0
    watched.send(LEARNER, lambda: watch.learner is not None)
    later = replace(LEARNER, frames=13_800, time_s=1.0)
    watched.send(later, lambda: watch.learner == later)
    assert watch.frames_per_second == 1000.0


def test_a_silent_learner_takes_no_frames(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched.watch
    watched.send(LEARNER, lambda: watch.learner is not None)
    watched.send(replace(LEARNER, frames=13_800, time_s=1.0), lambda: watch.frames_per_second > 0)
    monkeypatch.setattr("rollfleet.cli.watch.STALE_S", 0.5)
    wait_until(lambda: watch.frames_per_second == 0)


def test_a_run_ends_with_its_mean_speed_and_not_that_of_its_last_seconds(watched: Watched) -> None:
    watch = watched.watch
    for time_s, frames in ((0.0, 0), (4.0, 0), (5.0, 1_000), (14.0, 20_000), (19.0, 20_000)):
        beat = replace(LEARNER, frames=frames, time_s=time_s)
        watched.send(beat, lambda beat=beat: watch.learner == beat)  # type: ignore[misc]
    for worker in range(2):
        done = replace(WORKER, worker=worker, state=WorkerState.COMPLETE)
        watched.send(done, lambda done=done: watch.workers[done.worker] == done)  # type: ignore[misc]
    assert "test: 20,000 frames (2,000/s on average), " in _shown(watched, terminal=False)
    assert " 20,000 of 100,000 frames 2,000/s on average " in " ".join(_shown(watched, terminal=True).split())


def test_an_unreadable_heartbeat_is_skipped(watched: Watched, server: Server) -> None:
    for role, subject in ((Role.LEARNER, server.subjects.learner(0, 1)), (Role.WORKER, server.subjects.worker(0))):
        link = server.link(role)
        link.call(link.publish(subject, b"{no heartbeat"))
        link.call(link.flush())
    watched.send(LEARNER, lambda: watched.watch.learner == LEARNER)  # it arrives after the unreadable one
    assert watched.watch.workers[0] == WORKER
