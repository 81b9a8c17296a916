"""A replay buffer that the learner fills in the background, from worker processes that die."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
import torch
from tensordict import TensorDict
from tests.sdk.counting import OPTIONS, TRAJECTORY, Learned, always_0
from tests.waiting import wait_until

from rollfleet import Collector, Processes, ReplayBuffer
from rollfleet.errors import JobInvalid, Timeout
from rollfleet.learner.background_fill import SampleRatio
from rollfleet.rollout.trajectory_ids import split
from rollfleet.testing import CountingEnv

Fill = Callable[..., Collector]


@pytest.fixture
def fill() -> Iterator[Fill]:
    """Starts collectors of forked workers, mode async."""
    with ExitStack() as stack:

        def fill(buffer: ReplayBuffer, restarts: int = 0, **keywords: Any) -> Collector:
            processes = Processes(start_method="fork", max_restarts_per_worker=restarts)
            options = OPTIONS | {"mode": "async", "workers": 2, "processes": processes, "replay_buffer": buffer}
            collector = Collector(CountingEnv, always_0, **options | keywords)
            stack.callback(collector.detach)
            collector.start()
            return collector

        yield fill


def steps_by_environment(buffer: ReplayBuffer) -> dict[tuple[int, int, int], list[int]]:
    frames = TensorDict(buffer.state_dict()["frames"], batch_size=[len(buffer)])
    assert (frames["observation"] + 1 == frames["next", "observation"]).all()
    steps: dict[tuple[int, int, int], list[int]] = {}
    for number, step in zip(frames[TRAJECTORY].tolist(), frames["observation"].flatten().tolist(), strict=True):
        worker, incarnation, episode = split(number)
        steps.setdefault((worker, incarnation, episode % 2), []).append(int(step))
    return steps


def test_killed_workers_lose_and_corrupt_no_counted_frame(
    fill: Fill, started: Callable[[], list[psutil.Process]]
) -> None:
    buffer = ReplayBuffer(1_000_000)
    collector = fill(buffer, workers=3, restarts=1000)
    killed: set[psutil.Process] = set()

    def alive() -> list[psutil.Process]:
        return [each for each in started() if each not in killed]

    for number in range(6):
        before = buffer.write_count
        wait_until(lambda: len(alive()) == 3)
        victim = alive()[number % 3]
        killed.add(victim)
        time.sleep(0.003 * number)
        victim.kill()
        while buffer.write_count <= before + 100:  # this thread hears of the end, too
            assert len(collector.stats().workers) <= 3
        assert buffer.sample(32)["next", "reward"].eq(1).all()
    collector.async_shutdown(timeout_s=30)
    assert collector.frames == buffer.write_count == len(buffer)
    found = steps_by_environment(buffer)
    assert max(incarnation for _, incarnation, _ in found) >= 1
    for steps in found.values():
        assert steps == list(range(len(steps)))


def test_returns_can_be_read_while_the_buffer_is_filled(fill: Fill) -> None:
    collector = fill(ReplayBuffer(1000))
    wait_until(lambda: len(collector.episode_returns) > 1)
    reading, frames = iter(collector.episode_returns), collector.frames
    next(reading)
    wait_until(lambda: collector.frames > frames + 200)
    next(reading)


def test_several_collectors_fill_one_buffer(fill: Fill) -> None:
    buffer = ReplayBuffer(1000)
    both = [fill(buffer, workers=1, total_frames=160) for _ in range(2)]
    wait_until(lambda: buffer.write_count == 320)
    for collector in both:
        collector.async_shutdown(timeout_s=30)
        assert collector.frames == 160


class Stuck(CountingEnv):
    """Steps once `GO` is set."""

    def step(self, action: Any) -> Any:
        GO.wait(30)
        return super().step(action)


GO = threading.Event()


@pytest.fixture
def stuck() -> Iterator[Collector]:
    """A collector in this process that fills, and waits for `GO` in a step."""
    GO.clear()
    collector = Collector(Stuck, always_0, **OPTIONS | {"replay_buffer": ReplayBuffer(1000)})
    collector.start()
    yield collector
    GO.set()
    collector.detach()


def test_a_call_waits_for_the_batch_under_way_until_its_timeout(stuck: Collector) -> None:
    with pytest.raises(Timeout, match=r"the batch under way did not come within 0\.1 s"):
        stuck.call(None, "env.spec", timeout_s=0.1)


class Sampled(ReplayBuffer):
    """Counts samples that a test names."""

    sample_count = 0


def test_a_pause_waits_for_no_second_batch() -> None:
    """The thread that fills would begin it at once."""
    GO.clear()
    buffer = Sampled(1000)

    def go() -> None:
        wait_until(lambda: not buffer.must_wait())  # no sample waits for frames that a pause holds up
        GO.set()

    with Collector(Stuck, always_0, **OPTIONS | {"replay_buffer": buffer}) as collector:
        collector.start(frames_per_sample=1000)
        buffer.sample_count = 1
        assert buffer.must_wait()
        other = threading.Thread(target=go)
        other.start()
        with collector.pause():
            assert collector.frames == OPTIONS["frames_per_batch"]
        other.join()


def test_a_worker_of_this_process_applies_weights_while_the_ratio_stops_it() -> None:
    buffer = ReplayBuffer(1000)
    with Collector("CartPole-v1", Learned(), weights_interval=0, replay_buffer=buffer, **OPTIONS) as filled:
        filled.start(frames_per_sample=1)
        wait_until(lambda: len(buffer) > 0)
        buffer.sample(1)
        wait_until(lambda: not buffer.must_wait())  # it has the frames for this sample
        version = filled.update_policy_weights_()
        filled.wait_for_version(version, timeout_s=20)
        assert filled.versions() == {0: version}


def test_the_ratio_of_a_running_fill_cannot_change(stuck: Collector) -> None:
    with pytest.raises(JobInvalid, match=r"fills the replay buffer already; pass `frames_per_sample` to the first"):
        stuck.start(frames_per_sample=1)


def test_a_paused_collector_shuts_down(stuck: Collector) -> None:
    GO.set()
    with stuck.pause():
        assert stuck.call(None, "env.spec")
        stuck.async_shutdown(timeout_s=30)
    assert not stuck.is_running


def test_a_call_inside_a_pause_goes_before_the_calls_of_other_threads(fill: Fill) -> None:
    collector, entered = fill(ReplayBuffer(10_000)), threading.Event()

    def wait_for_the_turn() -> None:
        entered.set()
        collector.call(None, "env.spec", timeout_s=60)

    other = threading.Thread(target=wait_for_the_turn)
    with collector.pause():
        other.start()
        entered.wait()
        for _ in range(20):
            collector.call(None, "env.spec", timeout_s=60)
        assert other.is_alive()
    other.join()


def test_half_a_frame_for_each_sample_is_two_samples_a_frame() -> None:
    buffer, frame = ReplayBuffer(100), TensorDict({"seen": torch.zeros(1, 2)}, [1])
    buffer.extend(frame)
    ratio = SampleRatio(buffer, 0.5)
    buffer.sample(4)
    assert ratio.lacks()
    for _ in range(3):
        buffer.extend(frame)
        assert not ratio.lacks()
        buffer.sample(4)
        assert not ratio.lacks()
        buffer.sample(4)
        assert ratio.lacks()
    wrong: Any
    for wrong in (0, -1, "4", True, float("nan")):
        with pytest.raises(JobInvalid, match="frames_per_sample: expected a number above 0, such as 4"):
            SampleRatio(buffer, wrong)
