"""`stragglers_threshold`: a round closes once that fraction of the workers has sent; the others are cut.

A round also goes on without batches that cannot be read.
"""

import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.job_server import Connect, Server, actor_critic, join_all
from tests.sdk.concurrent_calls import begin
from tests.sdk.counting import Parts, always_0
from tests.sdk.places import Collect
from tests.sdk.rollouts import Countdown

from rollfleet import Collector, split_trajectories
from rollfleet.data.batch import MASK, TRAJECTORY, Fragment
from rollfleet.errors import MessageCorrupt
from rollfleet.rollout.trajectory_ids import split
from rollfleet.testing import CountingEnv
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.messages import WorkerState

STEPS = 1000  # of each worker in a round


class Slow(CountingEnv):
    """Has episodes of 7 frames. Each step takes `step_s`."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__(episode_frames=7)
        self._step_s = step_s

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        return super().step(action)


def keywords(*step_s: float, steps: int = STEPS, **more: Any) -> dict[str, Any]:
    """Make a collector of this many workers, with this many steps a round."""
    workers = len(step_s)
    env_kwargs = [{"step_s": each} for each in step_s]
    return {"env_kwargs": env_kwargs, "workers": workers, "num_envs": 1, "frames_per_batch": steps * workers} | more


def test_a_slow_worker_is_cut_the_mask_shows_where_and_no_frame_of_an_episode_is_lost_or_mixed(apart: Collect) -> None:
    collector = apart(Slow, always_0, stragglers_threshold=0.5, **keywords(0, 0.02))
    rows: dict[int, list[Any]] = {0: [], 1: []}
    frames = 0
    for batch in islice(collector, 4):
        mask = batch[MASK]
        fast, slow = mask.sum(1).tolist()
        frames += fast + slow
        assert collector.frames == frames
        assert batch.batch_size == (2, STEPS)
        assert fast == STEPS
        assert mask[1, :slow].all()
        assert (batch[TRAJECTORY][~mask] == -1).all()
        assert (batch["next", "reward"].squeeze(-1) == mask.float()).all()
        for worker, row in enumerate(batch):
            mine = row[row[MASK]]
            assert {split(each)[0] for each in mine[TRAJECTORY].unique().tolist()} <= {worker}
            rows[worker].append(mine)
    assert 0 < sum(map(len, rows[1])) < 4 * STEPS
    assert (collector.stats().stale, collector.stats().missed) == (0, 0)
    lengths = []
    for parts in rows.values():
        all_of: Any = torch.cat(parts)
        seen = all_of["observation"].flatten()
        assert torch.equal(seen, torch.arange(float(len(seen))))
        assert torch.equal(all_of["next", "observation"].flatten(), seen + 1)
        ids, done = all_of[TRAJECTORY], all_of["next", "done"].flatten()
        assert torch.equal(done, (seen + 1) % 7 == 0)
        assert torch.equal(ids[1:] != ids[:-1], done[:-1])
        lengths += [7] * int(done.sum())
    assert list(collector.episode_lengths) == lengths[-100:]


def test_the_threshold_is_the_fraction_of_workers_that_closes_a_round(apart: Collect) -> None:
    """0.7 of 3 workers are 2: with two slow workers, the round waits for the faster one."""
    steps = 60
    collector = apart(Slow, always_0, stragglers_threshold=0.7, **keywords(0, 0.005, 0.2, steps=steps))
    batch = next(collector)
    counts = batch[MASK].sum(1).tolist()
    assert counts[0] == steps
    assert counts[1] == steps
    assert 0 < counts[2] < steps
    assert collector.frames == sum(counts)


class Late(Slow):
    """Its worker has not begun before a file exists."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        while file is not None and not file.exists():
            time.sleep(0.01)


def with_a_late_worker(go: Path, **options: Any) -> dict[str, Any]:
    """Make a collector whose second worker begins once this file exists; rounds close without it."""
    return {"stragglers_threshold": 0.5} | keywords(0, 0, **options) | {"env_kwargs": [{}, {"file": go}]}


SHAPES = {"envs": (4, 20), "time": (2, 40), "stack": (2, 2, 20)}


@pytest.mark.parametrize("how", SHAPES)
def test_a_worker_that_has_not_begun_has_rows_of_padding(apart: Collect, tmp_path: Path, how: str) -> None:
    go = tmp_path / "go"
    collector = apart(Late, always_0, **with_a_late_worker(go, steps=40, num_envs=2, cat_results=how))
    batch = next(collector)
    go.touch()
    assert batch.batch_size == SHAPES[how]
    assert int(batch[MASK].sum()) == collector.frames == 40
    padding = batch[~batch[MASK]]
    assert (padding[TRAJECTORY] == -1).all()
    assert not padding["observation"].any()
    if how == "envs":
        assert batch[MASK].all(1).tolist() == [True, True, False, False]
    rounds = 0
    while collector.frames < 400 or not batch[MASK].all():  # until the other worker is there, too
        assert (rounds := rounds + 1) < 5000
        batch = next(collector)
        assert batch.batch_size == SHAPES[how]
        assert sorted(map(str, batch.keys(True, True))) == sorted(map(str, padding.keys(True, True)))
        if not batch[MASK].all():
            time.sleep(0.01)
    assert (batch[TRAJECTORY] >= 0).all()


@pytest.mark.parametrize("to", ["postproc", "replay_buffer"])
def test_split_trajectories_and_buffers_leave_rows_of_padding_out(apart: Collect, tmp_path: Path, to: str) -> None:
    parts, go = Parts(), tmp_path / "go"
    receiver = {"postproc": split_trajectories} if to == "postproc" else {"replay_buffer": parts}
    batch = next(apart(Late, always_0, **with_a_late_worker(go, steps=20), **receiver))
    go.touch()
    frames = parts[0] if batch is None else batch[batch[MASK]]
    assert frames.batch_size == (20,)
    assert {split(each)[0] for each in frames[TRAJECTORY].unique().tolist()} == {0}


def test_whole_trajectories_of_a_worker_that_has_not_begun_are_rows_of_padding(apart: Collect, tmp_path: Path) -> None:
    go = tmp_path / "go"
    batch = next(apart(Late, always_0, **with_a_late_worker(go, steps=20, trajs_per_batch=3)))
    go.touch()
    assert batch.batch_size == (6, 7)
    assert batch[MASK].sum(1).tolist() == [7, 7, 7, 0, 0, 0]


@pytest.mark.parametrize("comes", [False, True], ids=["never", "late"])
def test_a_worker_that_comes_after_a_round_closed_takes_part_in_the_next(
    comes: bool, server: Server, connect: Connect
) -> None:
    env, collect = {"id": "CartPole-v1", "numEnvs": 2}, {"framesPerBatch": 32}
    job = server.own(mode="Sync", workers=2, env=env, collect=collect, stragglers={"threshold": 0.5})
    workers = [server.start_worker(job, 0)]
    collector = connect(actor_critic())
    first = begin(next, collector)
    while not ((control := workers[0].transport.control) and control.closed):
        assert not first.done()
        time.sleep(0.01)
    if comes:
        workers.append(server.start_worker(job, 1))
        workers[1].wait_for(WorkerState.WAITING_FOR_LEARNER)
    batch = first.result(20)
    assert batch.shape == (4, 8)
    assert batch[MASK].all(1).tolist() == [True, True, False, False]
    if comes:
        while not next(collector)[MASK][2:].any():
            assert set(collector.stats().workers) == {0, 1}
    collector.shutdown()
    join_all(workers)


def of_marks(collect: Collect, monkeypatch: pytest.MonkeyPatch, *spoiled: float, mode: str = "sync") -> Collector:
    """Make a collector of two workers, whose observations have the marks 0 and 1. Some send what contradicts itself."""

    def pack(fragment: Fragment, *args: Any, **options: Any) -> Any:
        if float(fragment.steps["observation",][0, 0, 2]) in spoiled:
            fragment = replace(fragment, final={("observation",): torch.zeros(5, 3)})
        return pack_fragment(fragment, *args, **options)

    for module in ("processes.worker_transport", "nats.worker_transport"):
        monkeypatch.setattr(f"rollfleet.{module}.pack_fragment", pack)
    return collect(
        Countdown, always_0, env_kwargs=[{"mark": 0}, {"mark": 1}], workers=2, frames_per_batch=16, mode=mode
    )


def test_a_round_goes_on_without_a_batch_that_cannot_be_read(apart: Collect, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = of_marks(apart, monkeypatch, 1.0)
    for batch in islice(collector, 2):
        assert batch["observation"][..., 2].unique().tolist() == [0.0]
    assert collector.stats().corrupt == 2


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_that_no_batch_can_be_read_is_an_error(mode: str, apart: Collect, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MessageCorrupt, match="no batch of any worker could be read"):
        next(of_marks(apart, monkeypatch, 0.0, 1.0, mode=mode))
