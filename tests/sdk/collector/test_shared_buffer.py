"""A shared replay buffer, which worker processes fill themselves, in the background."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]
import psutil
import pytest
import torch
from tensordict import TensorDict
from tests.held import held, named_memory
from tests.sdk.collector import counting
from tests.sdk.collector.counting import OPTIONS, TRAJECTORY, VERSION, Learned, always_0, error_of
from tests.sdk.collector.given_keywords import grouped
from tests.waiting import wait_until

from rollfleet import Collector, ReplayBuffer
from rollfleet.errors import RollfleetError
from rollfleet.rollout.trajectory_ids import split
from rollfleet.testing import CountingEnv

if TYPE_CHECKING:
    from tests.sdk.collector.places import Collect

FILLED: dict[str, Any] = OPTIONS | {"workers": 2, "start_method": "fork"}


class Watched(ReplayBuffer):
    """Counts how often this process has extended it."""

    extended = 0

    def extend(self, frames: TensorDict) -> None:
        self.extended += 1
        super().extend(frames)


def all_of(buffer: ReplayBuffer) -> TensorDict:
    frames = buffer.state_dict()["frames"]
    return TensorDict(frames, batch_size=[len(frames["observation"])])


@pytest.fixture
def fill() -> Iterator[Callable[..., Collector]]:
    """Makes collectors of two forked workers by default."""
    with ExitStack() as stack:

        def fill(buffer: ReplayBuffer, policy: Any = always_0, env: Any = CountingEnv, **keywords: Any) -> Collector:
            collector = Collector(env, policy, replay_buffer=buffer, **grouped(FILLED | keywords))
            stack.callback(collector.detach)
            return collector

        yield fill


Fill = Callable[..., Collector]


def whole_trajectories_of(buffer: ReplayBuffer) -> dict[int, list[int]]:
    """Return the step numbers of each worker's environments. Fails if one is missing or repeated."""
    frames = all_of(buffer)
    assert (frames["observation"] + 1 == frames["next", "observation"]).all()
    steps: dict[tuple[int, int, int], list[int]] = {}
    for number, step in zip(frames[TRAJECTORY].tolist(), frames["observation"].flatten().tolist(), strict=True):
        worker, incarnation, episode = split(number)
        steps.setdefault((worker, incarnation, episode % 2), []).append(int(step))
    for found in steps.values():
        assert found == list(range(len(found)))
    return {worker: [] for worker, *_ in steps}


@pytest.mark.parametrize(
    ("mode", "start_method", "workers"), [("sync", "fork", 2), ("async", "fork", 2), ("async", "spawn", 1)]
)
def test_workers_fill_a_shared_buffer_and_no_batch_goes_through_the_learner(
    fill: Fill, mode: str, start_method: str, workers: int
) -> None:
    cloudpickle.register_pickle_by_value(counting)
    buffer = Watched(10_000, shared=True)
    collector = fill(buffer, mode=mode, start_method=start_method, workers=workers, total_frames=320)
    collector.start()
    wait_until(lambda: len(buffer) > 100)
    assert buffer.sample(64)["next", "reward"].eq(1).all()
    wait_until(lambda: buffer.write_count == 320)
    collector.async_shutdown(timeout_s=30)
    assert (collector.frames, buffer.write_count, len(buffer)) == (320, 320, 320)
    assert buffer.extended == 0
    assert (collector.stats().bytes, collector.stats().frames) == (0, 320)
    assert set(whole_trajectories_of(buffer)) <= {0, 1}


def test_without_a_shared_buffer_frames_go_through_the_learner_into_it(fill: Fill) -> None:
    found = []
    for shared in (True, False):
        buffer = ReplayBuffer(1000, shared=shared)
        collector = fill(buffer, total_frames=64, step_count=True)
        assert list(collector) == [None] * 4
        assert (collector.stats().bytes == 0) is shared  # a batch that goes through the learner has bytes on the wire
        found.append(all_of(buffer))
    mine, other = (frames[(frames[TRAJECTORY] * 1000 + frames["step_count"].flatten()).argsort()] for frames in found)
    assert set(mine.keys(True, True)) == set(other.keys(True, True))
    for key in mine.keys(True, True):
        assert torch.equal(mine[key], other[key]), key
        assert mine[key].dtype is other[key].dtype


def test_no_padding_gets_into_a_shared_buffer(fill: Fill) -> None:
    buffer = ReplayBuffer(1000, shared=True)
    collector = fill(buffer, reset_when_done=False, frames_per_batch=64, total_frames=40)
    assert list(collector) == [None] * 2
    assert collector.frames == len(buffer) == 40
    assert (all_of(buffer)[TRAJECTORY] >= 0).all()
    assert ("collector", "mask") not in all_of(buffer).keys(True, True)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_init_random_frames_count_what_was_written(fill: Fill, mode: str) -> None:
    buffer = ReplayBuffer(1000, shared=True)
    collector = fill(buffer, mode=mode, frames_per_batch=32, init_random_frames=64, total_frames=320)
    collector.start()
    wait_until(lambda: buffer.write_count == 320)
    collector.async_shutdown(timeout_s=30)
    actions = all_of(buffer)["action"]
    assert set(actions[:64].tolist()) == {0, 1}
    assert (actions[256:] == 0).all()
    if mode == "sync":
        assert (actions[64:] == 0).all()


def test_workers_use_weights_sent_meanwhile_and_do_not_write_stale_frames(fill: Fill) -> None:
    buffer, policy = ReplayBuffer(100_000, shared=True), Learned()
    collector = fill(buffer, policy, mode="async", weights_interval=0, max_lag=0)
    collector.start()
    wait_until(lambda: len(buffer) > 0)
    for number in range(2, 30):
        with torch.no_grad():
            policy.weight.fill_(number)
        assert collector.update_policy_weights_() == number
        wait_until(lambda: number in buffer.state_dict()["frames"]["collector"]["policy_version"][-64:])  # noqa: B023
    collector.async_shutdown(timeout_s=30)
    frames = all_of(buffer)
    assert torch.equal(frames["shown"][frames[VERSION] > 1].long(), frames[VERSION][frames[VERSION] > 1])
    assert collector.frames == len(buffer)
    assert collector.stats().missed == 0
    for worker in (0, 1):
        mine = frames[VERSION][(frames[TRAJECTORY] >> 47) == worker]
        assert (mine.diff() >= 0).all()


def test_a_pause_stops_filling_and_loses_nothing(fill: Fill) -> None:
    for mode in ("sync", "async"):
        buffer = ReplayBuffer(100_000, shared=True)
        collector = fill(buffer, mode=mode)
        collector.start()
        wait_until(lambda: len(buffer) > 0)  # noqa: B023
        for _ in range(3):
            with collector.pause():
                there = len(buffer)
                time.sleep(0.1)
                assert len(buffer) == there
            wait_until(lambda: len(buffer) > there)  # noqa: B023
        collector.async_shutdown(timeout_s=30)
        assert collector.frames == len(buffer)
        assert set(whole_trajectories_of(buffer)) == {0, 1}


def test_killed_workers_lose_and_corrupt_no_counted_frame(
    fill: Fill, started: Callable[[], list[psutil.Process]]
) -> None:
    buffer = ReplayBuffer(1_000_000, shared=True)
    collector = fill(buffer, mode="async", workers=3, max_restarts_per_worker=1000)
    collector.start()
    killed: set[psutil.Process] = set()

    def alive() -> list[psutil.Process]:
        return [each for each in started() if each not in killed]

    for number in range(12):
        wait_until(lambda: number < 11 or buffer.write_count > 2000)  # noqa: B023
        before = buffer.write_count
        wait_until(lambda: len(alive()) == 3)
        victim = alive()[number % 3]
        killed.add(victim)
        time.sleep(0.003 * number)
        victim.kill()
        wait_until(lambda: buffer.write_count > before + 100)  # noqa: B023
        assert buffer.sample(32)["next", "reward"].eq(1).all()
    collector.async_shutdown(timeout_s=30)
    assert collector.frames == buffer.write_count == len(buffer) == len(all_of(buffer))
    frames = all_of(buffer)
    incarnations = {split(number)[:2] for number in frames[TRAJECTORY].unique().tolist()}
    assert max(incarnation for _, incarnation in incarnations) >= 1
    assert whole_trajectories_of(buffer)


def test_a_restored_run_counts_on(fill: Fill) -> None:
    for mode in ("sync", "async"):
        first = fill(ReplayBuffer(1000, shared=True), mode=mode, total_frames=96)
        for _ in range(3):
            next(first)
        state = first.state_dict()
        first.shutdown()
        buffer = ReplayBuffer(1000, shared=True)
        again = fill(buffer, mode=mode, total_frames=96)
        again.load_state_dict(state)
        assert again.frames == state["frames"] >= 48
        assert set(again) == {None}
        again.shutdown()
        assert (again.frames, buffer.write_count) == (96, 96 - state["frames"])


def test_workers_that_join_fill_the_buffer_too(fill: Fill) -> None:
    buffer = ReplayBuffer(100_000, shared=True)
    collector = fill(buffer, mode="async")
    collector.start()
    wait_until(lambda: len(buffer) > 0)
    (late,) = collector.add_workers()
    wait_until(lambda: bool((all_of(buffer)[TRAJECTORY] >> 47 == late).any()))
    collector.remove_workers(0)
    collector.async_shutdown(timeout_s=30)
    assert collector.frames == len(buffer)
    assert set(whole_trajectories_of(buffer)) == {0, 1, late}


def test_several_collectors_and_the_learner_fill_one_buffer(fill: Fill) -> None:
    buffer = ReplayBuffer(100_000, shared=True)
    both = [fill(buffer, workers=1, mode="async", total_frames=160) for _ in range(2)]
    for collector in both:
        collector.start()
    wait_until(lambda: buffer.write_count == 320)
    for collector in both:
        collector.async_shutdown(timeout_s=30)
        assert collector.frames == 160
    buffer.extend(all_of(buffer)[:10])
    assert len(buffer) == 330


@pytest.mark.parametrize("what", ["environment", "layout"])
def test_a_workers_error_is_raised_at_the_next_call(fill: Fill, what: str) -> None:
    buffer = ReplayBuffer(1000, shared=True)
    if what == "layout":
        buffer.extend(TensorDict({"observation": torch.zeros(3, 7)}, batch_size=[3]))
    collector = fill(buffer, env_kwargs={"breaks_at": 30 if what == "environment" else 0})
    collector.start()
    expected = "the simulator broke" if what == "environment" else "differ from those in the buffer in"
    wait_until(lambda: expected in error_of(collector))
    with suppress(RollfleetError):
        collector.async_shutdown(timeout_s=30)


def test_with_postproc_the_learner_writes_its_results_into_the_buffer(fill: Fill) -> None:
    buffer = Watched(1000, shared=True)
    collector = fill(buffer, postproc=lambda batch: batch.exclude("action"), total_frames=64)
    assert list(collector) == [None] * 4
    assert (buffer.extended, len(buffer)) == (4, 64)
    assert "action" not in all_of(buffer)


def test_a_shared_buffer_works_as_a_replay_buffer_with_every_transport(collect: "Collect") -> None:
    buffer = ReplayBuffer(1000, shared=True)
    collector = collect(CountingEnv, always_0, replay_buffer=buffer, total_frames=64, **OPTIONS)
    collector.start()
    wait_until(lambda: buffer.write_count == 64)
    collector.async_shutdown(timeout_s=30)
    assert collector.frames == len(buffer) == 64
    assert set(buffer.sample(100)["next", "observation"].flatten().tolist()) <= set(range(1, 65))


def test_a_buffer_keeps_nothing_of_a_collector(fill: Fill) -> None:
    buffer = ReplayBuffer(1000, shared=True)
    with fill(buffer) as collector:
        next(collector)
    buffer.sample(1)
    before = held()
    collector = fill(buffer)
    next(collector)
    assert named_memory() <= before
    collector.shutdown()
    assert held() <= before


@pytest.mark.parametrize("shared", [False, True])
def test_a_dropped_collector_stops_filling_in_order(
    fill: Fill, shared: bool, started: Callable[[], list[psutil.Process]]
) -> None:
    for _ in range(4):
        buffer = ReplayBuffer(1000, shared=shared)
        collector = fill(buffer, mode="async")
        collector.start()
        wait_until(lambda: len(buffer) > 50)  # noqa: B023
        collector.detach()
        assert not started()
        assert collector.frames == buffer.write_count
