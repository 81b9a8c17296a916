"""Where a worker's environments step, and workers that join and leave during a run, through the public interface."""

import os
from itertools import islice, pairwise
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from tests.sdk.batches import several
from tests.sdk.counting import always_0
from tests.sdk.places import Collect, CollectInProcesses
from tests.sdk.rollouts import Observing

from rollfleet.errors import JobInvalid
from rollfleet.rollout.trajectory_ids import split

TRAJECTORY = ("collector", "traj_ids")


class Placed(Observing):
    """Observes the id of the process that it steps in."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def seen(self) -> Any:
        return np.array([float(os.getpid())])


def pids(batch: Any) -> list[set[int]]:
    return [set(row["observation"].flatten().long().tolist()) for row in batch]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "processes"),
    [
        ({"vectorization": "sync"}, 1),
        ({"vectorization": "async"}, 4),
        ({"vectorization": "async", "env_processes": 2}, 2),
    ],
)
def test_env_processes_is_the_number_of_each_worker(collect: Collect, options: dict[str, Any], processes: int) -> None:
    workers = collect.workers
    collector = collect(Placed, always_0, num_envs=4, frames_per_batch=16 * workers, **options)
    for batch in islice(collector, 2):
        rows = pids(batch)
        assert all(len(row) == 1 for row in rows)
        for worker in range(workers):
            mine = set.union(*rows[4 * worker : 4 * worker + 4])
            assert len(mine) == processes
            assert (os.getpid() in mine) is (processes == 1 and not isinstance(collect, CollectInProcesses))
    everyone = {pid for row in pids(batch) for pid in row} - {os.getpid()}
    collector.shutdown()
    psutil.wait_procs([psutil.Process(pid) for pid in everyone if psutil.pid_exists(pid)], timeout=10)
    assert not any(psutil.pid_exists(pid) for pid in everyone)


@pytest.mark.slow
def test_frames_do_not_depend_on_where_environments_step(collect: Collect) -> None:
    found = []
    for options in ({}, {"vectorization": "async"}, {"vectorization": "async", "env_processes": 2}):
        collector = collect(
            "CartPole-v1", always_0, num_envs=4, frames_per_batch=200, seed=3, **options, **collect.alone
        )
        found.append(several(collector, 2))
    for other in found[1:]:
        for key in ("observation", ("next", "observation"), ("next", "reward"), ("next", "done"), TRAJECTORY):
            assert torch.equal(found[0][key], other[key]), key
    assert found[0]["next", "done"].any()


def test_backend_envpool_collects_the_frames_of_a_pool(collect: Collect) -> None:
    pytest.importorskip("envpool", reason="EnvPool has no wheel for this Python")
    frames = 120 * collect.workers
    keywords: dict[str, Any] = {"backend": "envpool", "num_envs": 3, "frames_per_batch": frames, "seed": 5}
    first = next(collect("CartPole-v1", always_0, **keywords, **collect.alone)).clone()
    assert first["next", "done"].any()
    again = next(collect("CartPole-v1", always_0, **keywords, **collect.alone))
    assert torch.equal(again["observation"], first["observation"])


def test_in_this_process_no_worker_can_be_added(here: Any) -> None:
    collector = here(Placed, always_0, frames_per_batch=8)
    with pytest.raises(JobInvalid, match=r"make it with `workers=1` or more"):
        collector.add_workers(2)


def test_in_mode_sync_a_round_has_its_frames_with_any_number_of_workers(processes: Collect) -> None:
    collector = processes(Placed, always_0, num_envs=2, frames_per_batch=48)
    expected = 0

    def check(batch: Any, workers: set[int]) -> None:
        nonlocal expected
        assert set(collector.workers) == workers
        assert {split(each)[0] for each in batch[TRAJECTORY].unique().tolist()} == workers
        assert batch.batch_size == (2 * len(workers), 48 // (2 * len(workers)))
        expected += 48
        assert collector.frames == expected

    check(next(collector), {0, 1})
    assert collector.add_workers(2) == [2, 3]
    check(next(collector), {0, 1, 2, 3})
    collector.remove_workers([0, 2, 3])
    check(next(collector), {1})
    assert list(collector.versions()) == [1]
    assert collector.add_workers() == [4]
    check(next(collector), {1, 4})
    with pytest.raises(JobInvalid, match="shut the collector down"):
        collector.remove_workers([1, 4])
    with pytest.raises(JobInvalid, match="there is no worker 0"):
        collector.remove_workers(0)
    check(next(collector), {1, 4})


def test_in_mode_async_joining_workers_are_heard_and_leaving_ones_lose_nothing(processes: Collect) -> None:
    collector = processes("CartPole-v1", num_envs=2, frames_per_batch=16, mode="async")
    seen: dict[int, list[Any]] = {}

    def collect_until(worker: int) -> None:
        for batch in collector:
            (mine,) = {split(each)[0] for each in batch[TRAJECTORY].unique().tolist()}
            seen.setdefault(mine, []).append(batch)
            if mine == worker:
                return

    collect_until(0)
    (late,) = collector.add_workers()
    collect_until(late)
    collector.remove_workers(1)
    assert set(collector.workers) == {0, late}
    for _ in range(5):
        collect_until(late)
    assert collector.frames == sum(batch.numel() for batches in seen.values() for batch in batches)
    for batches in seen.values():  # each batch continues the last one, also the last batch of workers that left
        for one, other in pairwise(batches):
            going_on = ~one["next", "done"][:, -1, 0]
            assert torch.equal(one["next", "observation"][going_on, -1], other["observation"][going_on, 0])
            assert torch.equal(one[TRAJECTORY][going_on, -1], other[TRAJECTORY][going_on, 0])
    assert collector.stats().missed == 0
