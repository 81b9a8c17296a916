"""What an exception in an iteration interrupts is dropped and counted, and no frame is wrong or repeated."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from tests.sdk.counting import OPTIONS, TRAJECTORY, Parts, WaitsForFile, always_0
from tests.sdk.places import Collect
from tests.waiting import wait_until
from torch import Tensor, nn

from rollfleet import ActorCritic, Collector
from rollfleet.errors import EnvironmentFailed, JobInvalid, WorkerFailed
from rollfleet.exploration import exploration
from rollfleet.processes.inline import InlineTransport
from rollfleet.rollout.trajectory_ids import split
from rollfleet.schemes import Whole
from rollfleet.testing import CountingEnv, small_job
from rollfleet.transports.workload import Workload
from rollfleet_api.messages import LearnerStatus

ONE_ENV: dict[str, Any] = {"num_envs": 1, "frames_per_batch": 16}


class Exhausted(CountingEnv):
    """Reads its 20th step from an iterator that has ended."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.steps == 19:
            next(iter(()))
        return super().step(action)


class ExhaustedPolicy:
    """Reads an action from an iterator that ends."""

    def __init__(self) -> None:
        self._left = iter(range(20))

    def __call__(self, observation: Tensor) -> Tensor:
        next(self._left)
        return always_0(observation)


def exhausted(_: Any) -> Any:
    next(iter(()))


SOURCES: dict[str, Callable[[], dict[str, Any]]] = {
    "environment": lambda: {"env": Exhausted},
    "policy": lambda: {"policy": ExhaustedPolicy()},
    "postproc": lambda: {"postproc": exhausted},
}


@pytest.mark.parametrize("source", SOURCES)
def test_stop_iteration_of_users_code_is_an_error_and_not_the_end(collect: Collect, source: str) -> None:
    keywords = {"env": CountingEnv, "policy": always_0} | SOURCES[source]() | OPTIONS
    collector = collect(**keywords)
    with pytest.raises((RuntimeError, WorkerFailed), match="StopIteration") as raised:
        list(islice(collector, 10))
    assert raised.type is WorkerFailed or isinstance(raised.value.__cause__, StopIteration)


class ExhaustedScheme(Whole):
    """A scheme that reads the weights from an iterator that has ended."""

    def select(self, policy: Any) -> Any:
        return exhausted(policy)


@pytest.mark.parametrize("keyword", ["init_fn", "policy_factory", "weight_scheme"])
def test_stop_iteration_while_the_collector_is_made_is_an_error(here: Callable[..., Collector], keyword: str) -> None:
    value = ExhaustedScheme() if keyword == "weight_scheme" else lambda: exhausted(None)
    with pytest.raises(RuntimeError, match=r"raised StopIteration$") as raised:
        here(CountingEnv, **OPTIONS, **{keyword: value})
    assert isinstance(raised.value.__cause__, StopIteration)


def native() -> Any:
    same_step = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.vector.SyncVectorEnv([Exhausted] * 2, autoreset_mode=same_step)


@pytest.mark.parametrize(
    ("env", "vectorization", "error"),
    [(Exhausted, "async", EnvironmentFailed), (native, "sync", RuntimeError)],
    ids=["async", "native"],
)
def test_stop_iteration_is_an_error_in_every_vectorization(
    here: Callable[..., Collector], env: Any, vectorization: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match="StopIteration"):
        list(islice(here(env, always_0, vectorization=vectorization, **OPTIONS), 10))


def test_stop_iteration_of_a_buffer_is_an_error_of_the_background_fill(collect: Collect) -> None:
    class Buffer(Parts):
        def extend(self, frames: Any) -> None:
            exhausted(frames)

    collector = collect(CountingEnv, always_0, replay_buffer=Buffer(), **OPTIONS)
    collector.start()
    wait_until(lambda: not collector.is_running)
    with pytest.raises(RuntimeError, match="StopIteration"):
        collector.frames  # noqa: B018
    with pytest.raises(RuntimeError, match="StopIteration"):
        collector.async_shutdown()


class Pressed(threading.Timer):
    """Presses Ctrl-C after a delay, once, while the block runs."""

    def __init__(self, after_s: float) -> None:
        super().__init__(after_s, os.kill, (os.getpid(), signal.SIGINT))

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.join()


def interrupted_at_random(collector: Collector, times: int, within_s: float) -> list[Any]:
    """Iterate, with a Ctrl-C at a random moment of each call. Returns all batches."""
    moments, interrupts = random.Random(7), 0
    batches: list[Any] = []
    while interrupts < times:
        try:
            with Pressed(moments.random() * within_s):
                batches.extend(islice(collector, 1))  # in C: nothing is lost between the iterator and the list
                batches.extend(islice(collector, 1))
        except KeyboardInterrupt:
            interrupts += 1
    return [*batches, next(collector)]


def rows_by_worker(batches: list[Any]) -> dict[int, Any]:
    """Return the frames of each worker, in order; workers have one environment."""
    rows: dict[int, list[Any]] = {}
    for batch in batches:
        for row in batch:
            rows.setdefault(split(int(row[TRAJECTORY][0]))[0], []).append(row)
    return {worker: torch.cat(parts) for worker, parts in rows.items()}


def check_trajectories(frames: Any) -> None:
    """Check that no frame came twice, and that none lacks within a trajectory."""
    seen, ids = frames["observation"].flatten(), frames[TRAJECTORY]
    assert torch.equal(frames["next", "observation"].flatten(), seen + 1)
    assert len(seen.unique()) == len(seen)
    same = ids[1:] == ids[:-1]
    assert torch.equal(seen[1:][same], seen[:-1][same] + 1)
    assert len(ids.unique()) == int((~same).sum()) + 1


def lost(batches: list[Any]) -> int:
    """Return the number of fragments of 8 frames that workers collected before the last yielded ones, and not here."""
    rows = rows_by_worker(batches).values()
    return sum(int((frames["observation"].max() + 1) // 8) - len(frames) // 8 for frames in rows)


# Ctrl-C that Python raises in a callback of the garbage collector is reported, and goes no further.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ctrl_c_at_any_moment_drops_and_counts_batches_of_workers_and_repeats_none(apart: Collect, mode: str) -> None:
    collector = apart(CountingEnv, always_0, mode=mode, **ONE_ENV | {"frames_per_batch": 16 if mode == "sync" else 8})
    batches = [next(collector), *interrupted_at_random(collector, times=30, within_s=0.01)]
    after = len(batches)
    while len(rows_by_worker(batches[after:])) < 2:
        batches.append(next(collector))
    for frames in rows_by_worker(batches).values():
        seen = frames["observation"].flatten()
        assert torch.equal(frames["next", "observation"].flatten(), seen + 1)
        assert torch.equal(seen, seen.unique())
        if mode == "sync":
            check_trajectories(frames)
    stats = collector.stats()
    assert lost(batches) == stats.interrupted + stats.stale
    assert (stats.missed, stats.repeated) == (0, 0)
    assert (stats.frames, stats.batches) == (sum(batch.numel() for batch in batches), len(batches))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_in_this_process_frames_that_ctrl_c_cuts_are_of_trajectories_that_end_there(
    here: Callable[..., Collector],
) -> None:
    collector = here(CountingEnv, always_0, num_envs=1, frames_per_batch=64)
    next(collector)
    for frames in rows_by_worker(interrupted_at_random(collector, times=100, within_s=0.004)).values():
        check_trajectories(frames)


class Linear(nn.Module):
    """Draws from torch's default generator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, observation: Tensor) -> Tensor:
        return (torch.rand(len(observation)) * self.weight < 0.5).long()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("device", [None, "cpu:0"])
def test_ctrl_c_leaves_the_learners_torch_as_it_was(here: Callable[..., Collector], device: str | None) -> None:
    """`cpu:0`: a copy of the policy acts, in inference mode."""
    collector = here(CountingEnv, Linear(), num_envs=1, frames_per_batch=2, policy_device=device)
    next(collector)
    torch.manual_seed(5)
    before = torch.get_rng_state(), exploration()
    interrupted_at_random(collector, times=100, within_s=0.001)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert exploration() is before[1]


def test_an_interrupted_round_is_dropped_and_counted(apart: Collect, tmp_path: Path) -> None:
    """One worker has sent its fragment of the round, and the other one sends it later."""
    go = tmp_path / "go"
    env_kwargs: list[dict[str, Any]] = [{}, {"step": 12, "file": go}]
    collector = apart(WaitsForFile, always_0, env_kwargs=env_kwargs, **ONE_ENV)
    batches = [next(collector)]

    def press_when_sent() -> None:
        wait_until(lambda: collector.stats().workers[0].batches == 2)
        time.sleep(0.3)  # the learner receives it
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press_when_sent)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        next(collector)
    pressing.join()
    go.touch()
    batches += islice(collector, 2)
    for frames in rows_by_worker(batches).values():
        check_trajectories(frames)
        expected = [*range(8), *range(16, 32)]
        assert frames["observation"].flatten().tolist() == expected
    assert (collector.stats().interrupted, collector.stats().stale, collector.frames) == (1, 1, 48)


def mine() -> None:
    raise LookupError("mine")


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("raises", "error"), [(mine, LookupError), (press_ctrl_c, KeyboardInterrupt)])
def test_a_batch_is_dropped_whose_postproc_is_interrupted(
    collect: Collect, raises: Callable[[], None], error: type[BaseException]
) -> None:
    given: list[Any] = []

    def postproc(batch: TensorDict) -> TensorDict:
        given.append(batch)
        if len(given) in (2, 3):
            raises()
        return batch

    collector = collect(CountingEnv, always_0, postproc=postproc, **ONE_ENV)
    yielded = [next(collector)]
    for _ in range(2):
        with pytest.raises(error):
            next(collector)
    yielded += islice(collector, 2)
    assert [id(batch) for batch in yielded] == [id(given[index]) for index in (0, 3, 4)]
    for frames in rows_by_worker(yielded).values():
        check_trajectories(frames)
    assert (collector.frames, collector.batches, collector.stats().interrupted) == (48, 3, 2 * collect.workers)


class Reported(InlineTransport):
    """Reports as a transport with heartbeats does."""

    status: Callable[[], LearnerStatus]

    def report(self, status: Callable[[], LearnerStatus]) -> None:
        self.status = status


def test_ctrl_c_leaves_all_counters_as_they_were() -> None:
    presses = iter((False, True))

    def postproc(batch: TensorDict) -> TensorDict:
        if next(presses):
            press_ctrl_c()
        return batch

    def counters() -> tuple[Any, ...]:
        beat = transport.status()
        rows = len(collector.episode_table()["return"])
        return collector.state_dict(), beat.frames, beat.batches, beat.episodes, beat.mean_return, beat.lag, rows

    env = {"entrypoint": "rollfleet.testing:CountingEnv", "numEnvs": 2}
    job = small_job(mode="Sync", env=env, collect={"framesPerBatch": 16})
    transport, policy = Reported(Workload.of(job)), ActorCritic(CountingEnv.observation_space, CountingEnv.action_space)
    collector = Collector.over(transport, job, policy, postproc=postproc)
    next(collector)
    before = counters()
    with pytest.raises(KeyboardInterrupt):
        next(collector)
    assert before[3] > 0
    assert counters()[1:] == before[1:]
    assert collector.episode_returns == before[0]["episode_returns"]


def test_frames_are_dropped_whose_buffer_raises(collect: Collect) -> None:
    class Busy(Parts):
        errors = 2

        def extend(self, frames: Any) -> None:
            if self and self.errors:
                self.errors -= 1
                raise BlockingIOError("busy")
            super().extend(frames)

    buffer = Busy()
    collector = collect(CountingEnv, always_0, replay_buffer=buffer, **ONE_ENV)
    next(collector)
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            next(collector)
    assert list(islice(collector, 2)) == [None, None]
    assert (len(buffer), collector.frames, collector.stats().interrupted) == (3, 48, 2 * collect.workers)
    frames: Any = torch.cat(list(buffer))
    assert len(frames["observation"].unique()) == 48 // collect.workers


def test_ctrl_c_in_a_buffer_is_raised_once_it_has_the_frames(collect: Collect) -> None:
    class Pressing(Parts):
        def extend(self, frames: Any) -> None:
            press_ctrl_c()
            super().extend(frames)

    buffer = Pressing()
    collector = collect(CountingEnv, always_0, replay_buffer=buffer, **ONE_ENV)
    with pytest.raises(KeyboardInterrupt):
        next(collector)
    assert (len(buffer), collector.frames, collector.stats().interrupted) == (1, 16, 0)


def test_a_postproc_that_returns_none_is_an_error(here: Collect) -> None:
    with pytest.raises(JobInvalid, match="`postproc` returned None; return the batch"):
        next(here(CountingEnv, always_0, postproc=lambda batch: None, **ONE_ENV))
