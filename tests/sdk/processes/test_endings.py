"""However a learner ends, its workers leave nothing behind: no process, thread, descriptor or memory."""

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.held import held
from tests.job_server import actor_critic
from tests.sdk.counting import Learned
from tests.sdk.given_keywords import grouped
from tests.waiting import wait_until

from rollfleet import Collector, Processes, ReplayBuffer
from rollfleet.errors import JobEnded, WorkerFailed
from rollfleet.testing import CountingEnv
from rollfleet_api.messages import WorkerState

PATIENCE_S = 60.0


class Stuck(CountingEnv):
    """Never returns from its second step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        while self.steps:
            signal.pause()
        return super().step(action)


class Closes(CountingEnv):
    """Takes this many seconds to close, and then leaves a file behind."""

    def __init__(self, seconds: float, file: Path) -> None:
        super().__init__()
        self._seconds, self._file = seconds, file

    def close(self) -> None:
        time.sleep(self._seconds)
        self._file.touch()


class Interrupting(Closes):
    """Presses Ctrl-C in its learner once that waits for its close."""

    def close(self) -> None:
        learner = psutil.Process(os.getppid())
        wait_until(lambda: learner.status() == psutil.STATUS_SLEEPING)
        learner.send_signal(signal.SIGINT)
        super().close()


class Exclusive(CountingEnv):
    """Holds a lock until it is closed, which takes half a second. Its third step fails."""

    def __init__(self, lock: Path) -> None:
        super().__init__(breaks_at=3)
        self._lock = lock
        lock.touch(exist_ok=False)

    def close(self) -> None:
        time.sleep(0.5)
        self._lock.unlink()


def collector(**options: Any) -> Collector:
    policy = actor_critic()
    small: dict[str, Any] = {
        "num_envs": 2,
        "frames_per_batch": 16,
        "workers": 2,
        "mode": "async",
        "start_method": "fork",
    }
    return Collector("CartPole-v1", policy, **grouped(small | options))


@pytest.mark.parametrize(
    ("start_method", "vectorization", "workers"), [("fork", "sync", 2), ("fork", "async", 2), ("spawn", "async", 1)]
)
def test_shutdown_leaves_nothing_behind(start_method: str, vectorization: str, workers: int) -> None:
    import tensordict  # noqa: F401  # its import opens descriptors too

    before = held()
    with collector(start_method=start_method, vectorization=vectorization, workers=workers) as frames:
        for _ in range(5):
            next(frames)
        begun = held() - before
        assert any(isinstance(each, psutil.Process) for each in begun)
        assert not any(isinstance(each, threading.Thread | str) for each in begun)
    assert held() <= before


def test_shutdown_waits_for_no_batch_of_a_buffer_that_is_filled() -> None:
    """Workers that leave begin no round: the batch under way may never come."""
    with collector() as frames:
        next(frames)
    before = held()
    for _ in range(5):
        with collector(mode="sync", replay_buffer=ReplayBuffer(1000)) as frames:
            frames.start()
            wait_until(lambda: frames.frames > 0)
    assert held() <= before


def test_garbage_collected_collector_leaves_nothing_behind() -> None:
    before = held()
    frames: Collector | None = collector()
    assert frames is not None
    next(frames)
    frames = None
    assert held() <= before


@pytest.mark.parametrize("use", [next, lambda frames: wait_until(lambda: frames.start() or frames.frames < 0)])
def test_a_collector_whose_error_was_caught_leaves_nothing_behind(use: Callable[[Collector], object]) -> None:
    buffer, before = ReplayBuffer(1000), held()
    frames: Collector | None = Collector(
        CountingEnv,
        policy := Learned(),
        env_kwargs={"breaks_at": 3},
        frames_per_batch=16,
        workers=1,
        replay_buffer=buffer,
        processes=Processes(start_method="fork"),
    )
    assert frames is not None
    for _ in range(2):
        with pytest.raises(WorkerFailed):
            use(frames)
    dropped = weakref.ref(policy)
    del frames, policy
    assert held() <= before
    assert dropped() is None


def test_killed_and_restarted_workers_leave_nothing_behind(started: Callable[[], list[psutil.Process]]) -> None:
    before = held()
    with collector(workers=1, max_restarts_per_worker=3) as frames:
        next(frames)
        for _ in range(3):
            (worker,) = started()
            worker.kill()
            while worker.is_running():
                next(frames)
    assert held() <= before


def test_kept_batches_keep_nothing_else() -> None:
    with collector() as frames:
        next(frames)
    before = held()
    with collector() as frames:
        batches = [next(frames) for _ in range(5)]
    assert held() <= before
    assert all(batch["observation"].isfinite().all() for batch in batches)


def test_shutdown_ends_a_worker_that_hangs_in_a_step() -> None:
    before = held()
    frames = Collector(Stuck, workers=1, frames_per_batch=1, processes=Processes(start_method="fork"))
    next(frames)
    frames.shutdown()
    assert held() <= before


@pytest.mark.parametrize("start_method", ["fork", "spawn"], ids=["waits for the learner", "has not begun"])
def test_shutdown_ends_at_once_a_worker_that(start_method: str) -> None:
    before = held()
    frames = collector(start_method=start_method)
    if start_method == "fork":
        next(frames)
        waits = WorkerState.WAITING_FOR_LEARNER
        wait_until(lambda: [each.state for each in frames.stats().workers.values()] == [waits, waits])
    began = time.monotonic()
    frames.shutdown(timeout_s=PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S / 2
    assert held() <= before


def test_a_worker_that_still_starts_cuts_no_other_ones_close(tmp_path: Path) -> None:
    places = Processes(close_timeout_s=PATIENCE_S)
    with Collector(
        partial(Closes, 2.0, tmp_path / "closed"), workers=1, frames_per_batch=1, processes=places
    ) as frames:
        next(frames)
        frames.add_workers(1)
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize(("close_timeout_s", "timeout_s"), [(0.2, None), (PATIENCE_S, 0.2)])
def test_a_close_that_takes_longer_than_its_time_is_cut_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, close_timeout_s: float, timeout_s: float | None
) -> None:
    places = Processes(start_method="fork", close_timeout_s=close_timeout_s)
    frames = Collector(partial(Closes, 600.0, tmp_path / "closed"), workers=1, frames_per_batch=1, processes=places)
    next(frames)
    frames.shutdown(timeout_s)
    assert "worker 0: environments not closed within 0.2 s, and killed" in caplog.text
    assert not (tmp_path / "closed").exists()


def test_ctrl_c_in_a_shutdown_ends_workers_at_once(tmp_path: Path, started: Callable[[], list[psutil.Process]]) -> None:
    env = partial(Interrupting, PATIENCE_S, tmp_path / "closed")
    frames = Collector(env, workers=1, frames_per_batch=1, processes=Processes(start_method="fork"))
    next(frames)
    with pytest.raises(KeyboardInterrupt):
        frames.shutdown(timeout_s=PATIENCE_S)
    assert not started()
    assert not (tmp_path / "closed").exists()


def test_a_failed_worker_closes_its_environments_before_its_successor_makes_them(tmp_path: Path) -> None:
    places = Processes(start_method="fork", max_restarts_per_worker=1)
    env = partial(Exclusive, tmp_path / "lock")
    with (
        Collector(env, workers=1, frames_per_batch=2, mode="async", processes=places) as frames,
        pytest.raises(WorkerFailed, match="the simulator broke"),
    ):
        list(frames)


def test_workers_survive_the_end_of_a_fork_of_their_learner() -> None:
    with collector() as frames:
        next(frames)
        if (child := os.fork()) == 0:
            with suppress(JobEnded):
                frames.shutdown()
            frames.detach()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for _ in range(5):
            next(frames)
