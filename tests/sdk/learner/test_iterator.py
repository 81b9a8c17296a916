"""What the learner does with batches and with the collector during a run."""

import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.sdk.counting import OPTIONS, TRAJECTORY, VERSION, Learned, Parts, always_0
from tests.sdk.places import Collect
from tests.waiting import wait_until

from rollfleet import Collector, ReplayBuffer
from rollfleet.data.splitting import split_trajectories
from rollfleet.errors import JobInvalid, WorkerFailed
from rollfleet.testing import CountingEnv


def test_postproc_is_called_with_each_batch_and_its_result_is_yielded(collect: Collect) -> None:
    seen = []

    def postproc(batch: TensorDict) -> str:
        seen.append(batch)
        return f"{len(seen)} of {batch['next', 'reward'].sum():g}"

    collector = collect(CountingEnv, always_0, postproc=postproc, **OPTIONS)
    assert list(islice(collector, 2)) == ["1 of 16", "2 of 16"]
    assert collector.frames == 32


def test_with_a_replay_buffer_the_iterator_fills_it_and_yields_none(collect: Collect) -> None:
    buffer = Parts()
    plain = list(collect(CountingEnv, always_0, total_frames=48, **OPTIONS))
    assert list(collect(CountingEnv, always_0, total_frames=48, replay_buffer=buffer, **OPTIONS)) == [None] * 3
    expected: Any = torch.cat([batch.reshape(-1) for batch in plain])
    found: Any = torch.cat(list(buffer))
    assert torch.equal(found["observation"], expected["observation"])


def test_no_padding_gets_into_a_replay_buffer(collect: Collect) -> None:
    buffer = Parts()
    next(collect(CountingEnv, always_0, postproc=split_trajectories, replay_buffer=buffer, **OPTIONS))
    (frames,) = buffer
    assert frames.batch_size == (16,)
    assert (frames[TRAJECTORY] >= 0).all()
    assert (frames["next", "reward"] == 1).all()


class SlowParts(Parts):
    """A replay buffer whose first `extend` waits until the test lets it end."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end = threading.Event(), threading.Event()

    def extend(self, frames: TensorDict) -> None:
        self.begun.set()
        assert self.may_end.wait(30)
        super().extend(frames)


def test_an_iteration_that_is_refused_drops_nothing_of_the_background_fill(collect: Collect) -> None:
    buffer = SlowParts()
    collector = collect(CountingEnv, always_0, replay_buffer=buffer, total_frames=64, **OPTIONS)
    collector.start()
    assert buffer.begun.wait(30)
    assert collector.is_running
    with pytest.raises(JobInvalid, match="do not iterate as well"):
        next(collector)
    buffer.may_end.set()
    wait_until(lambda: not collector.is_running)
    assert collector.frames == buffer.frames == 64


def test_a_buffer_gets_a_batch_whole_or_not_at_all(processes: Collect) -> None:
    buffer = ReplayBuffer(64)
    collector = processes(["CartPole-v1", "Acrobot-v1"], None, frames_per_batch=8, replay_buffer=buffer)
    with pytest.raises(JobInvalid, match="batches 0 and 1 cannot be joined"):
        next(collector)
    assert (len(buffer), collector.frames) == (0, 0)


def test_start_without_a_buffer_is_refused(here: Collect) -> None:
    with pytest.raises(JobInvalid, match="replay_buffer="):
        here(CountingEnv, always_0, **OPTIONS).start()


def test_a_pause_collects_nothing_and_loses_nothing(collect: Collect) -> None:
    plain = collect(CountingEnv, always_0, total_frames=64, **OPTIONS)
    expected: Any = torch.cat([batch.clone() for batch in plain], dim=1)
    collector = collect(CountingEnv, always_0, total_frames=64, **OPTIONS)
    parts = [next(collector)]
    with collector.pause():
        with pytest.raises(JobInvalid, match="paused"):
            next(collector)
        with pytest.raises(JobInvalid, match="paused already"), collector.pause():
            pass
    parts += list(collector)
    found: Any = torch.cat(parts, dim=1)
    for key in ("observation", ("next", "reward"), TRAJECTORY):
        assert torch.equal(found[key], expected[key]), key


def test_a_pause_stops_the_background_fill(collect: Collect) -> None:
    buffer = Parts()
    collector = collect(CountingEnv, always_0, replay_buffer=buffer, **OPTIONS)
    collector.start()
    wait_until(lambda: buffer.frames > 0)
    with collector.pause():
        there = buffer.frames
        time.sleep(0.2)
        assert buffer.frames == there
    wait_until(lambda: buffer.frames > there)
    collector.async_shutdown(timeout_s=30)
    rows: Any = torch.cat(list(buffer))
    steps = rows["observation"][rows[TRAJECTORY] == rows[TRAJECTORY][0]].flatten()
    assert torch.equal(steps, torch.arange(float(len(steps))))


def test_a_restored_run_counts_on_and_gives_no_id_twice(collect: Collect, tmp_path: Any) -> None:
    collector = collect(CountingEnv, Learned(), total_frames=96, **OPTIONS)
    ids = {int(each) for batch in islice(collector, 3) for each in batch[TRAJECTORY].unique()}
    torch.save(collector.state_dict(), tmp_path / "state")
    returns, lengths = collector.episode_returns, collector.episode_lengths
    again = collect(CountingEnv, Learned(), total_frames=96, **OPTIONS)
    again.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert (again.frames, again.batches, again.version) == (48, 3, 3)
    assert again.episode_returns[-3:] == returns[-3:]
    assert again.episode_lengths[-3:] == lengths[-3:]
    rest = list(again)
    assert len(rest) == 3
    assert [int(batch[VERSION].unique()) for batch in rest] == [4, 5, 6]
    assert not ids & {int(each) for batch in rest for each in batch[TRAJECTORY].unique()}
    assert again.frames == 96


def test_runs_restored_from_one_state_are_the_same_and_seed_their_environments_anew(collect: Collect) -> None:
    first = collect("CartPole-v1", **OPTIONS, **collect.alone)
    begun = next(first)["observation"][:, 0]
    state = first.state_dict()
    found = []
    for _ in range(2):
        again = collect("CartPole-v1", **OPTIONS, **collect.alone)
        again.load_state_dict(state)
        found.append(next(again))
    assert torch.equal(found[0]["observation"], found[1]["observation"])
    assert torch.equal(found[0]["action"], found[1]["action"])
    assert len(torch.cat([begun, found[0]["observation"][:, 0]]).unique(dim=0)) == 2 * len(begun)


def test_leaving_the_with_block_closes_the_environments(here: Callable[..., Collector]) -> None:
    closed = []

    class Closing(CountingEnv):
        def close(self) -> None:
            closed.append(1)

    with here(Closing, always_0, **OPTIONS) as collector:
        next(collector)
    assert closed == [1, 1]
    with pytest.raises(KeyError), here(Closing, always_0, **OPTIONS) as collector:
        raise KeyError
    assert closed == [1, 1, 1, 1]


def test_a_workers_error_shows_its_position_and_how_to_reproduce_it(apart: Collect) -> None:
    keywords: dict[str, Any] = {"env_kwargs": {"breaks_at": 20}, "num_envs": 2, "frames_per_batch": 32, "seed": 9}
    with pytest.raises(WorkerFailed) as raised:
        list(apart(CountingEnv, always_0, **keywords))
    message = str(raised.value)
    assert 'raise ArithmeticError("the simulator broke")' in message
    assert "counting_env.py" in message
    assert f"seed 9, worker {raised.value.worker}, incarnation 0" in message
    assert "after 32 frames in 2 batches" in message


def test_stats_have_each_worker_and_the_jobs_end(collect: Collect) -> None:
    workers = collect.workers
    collector = collect("CartPole-v1", num_envs=2, frames_per_batch=8 * workers, total_frames=16 * workers)
    next(collector)
    wait_until(lambda: [each.frames for each in collector.stats().workers.values()] == [8] * workers)
    assert [*collector.stats().workers] == [*range(workers)]
    assert not collector.stats().completed
    assert len([*collector]) == 1
    assert collector.stats().completed


def test_the_text_of_a_collector_shows_what_it_collects_and_how_far_it_is(collect: Collect) -> None:
    collector = collect("CartPole-v1", num_envs=2, frames_per_batch=16)
    next(collector)
    shown = f"<Collector('CartPole-v1', workers={collect.workers}, mode='sync', frames=16, batches=1, version=0)"
    assert repr(collector) == f"{shown}>"
    collector.shutdown()
    assert repr(collector) == f"{shown} ended>"


def test_frames_per_sample_limits_the_background_fill_from_the_first_sample_on(collect: Collect) -> None:
    buffer = ReplayBuffer(100_000)
    collector = collect(CountingEnv, always_0, replay_buffer=buffer, **OPTIONS)
    collector.start(frames_per_sample=32)
    wait_until(lambda: buffer.write_count >= 200)  # no limit yet
    low = buffer.write_count
    buffer.sample(4)
    high = buffer.write_count + 3 * 16  # batches under way, too
    for samples in range(1, 6):
        wait_until(lambda: buffer.write_count >= low + 32 * samples)  # noqa: B023
        time.sleep(0.1)
        assert buffer.write_count < high + 32 * samples
        buffer.sample(4)
    collector.async_shutdown(timeout_s=30)


def test_samples_wait_for_their_frames_until_the_end_of_the_job(collect: Collect) -> None:
    buffer, frames = ReplayBuffer(100_000), 16 * collect.workers
    total = {"frames_per_batch": frames, "total_frames": 10 * frames}
    collector = collect(CountingEnv, always_0, replay_buffer=buffer, **OPTIONS | total)
    collector.start(frames_per_sample=frames)
    wait_until(lambda: len(buffer) > 0)
    with collector.pause():
        low = buffer.write_count
        buffer.sample(4)
        buffer.sample(4)  # a paused collector writes nothing: no wait
    for samples in range(2, 14):
        buffer.sample(4)
        assert buffer.write_count >= min(low + samples * frames, 10 * frames)


def test_frames_per_sample_needs_a_buffer_that_counts_samples(here: Collect) -> None:
    collector = here(CountingEnv, always_0, replay_buffer=Parts(), **OPTIONS)
    with pytest.raises(JobInvalid, match=r"`frames_per_sample` needs a rollfleet.ReplayBuffer"):
        collector.start(frames_per_sample=32)
