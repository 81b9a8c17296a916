"""How much is collected, from how many environments, and in which form."""

import multiprocessing
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.sdk.places import Collect
from tests.sdk.rollouts import Countdown, always_1
from tests.waiting import wait_until
from torch import Tensor

from rollfleet import Collector
from rollfleet.rollout.trajectory_ids import split


def marks(batch: Any) -> list[int]:
    return [int(row) for row in batch["observation"][:, 0, 2]]


def test_frames_per_batch_counts_all_workers_and_num_envs_each_worker(collect: Collect) -> None:
    collector = collect(Countdown, always_1, num_envs=3, frames_per_batch=30 * collect.workers)
    for number, batch in enumerate(islice(collector, 3), start=1):
        assert batch.batch_size == (3 * collect.workers, 10)
        assert batch.names == [None, "time"]
        assert [split(int(row[0]))[0] for row in batch["collector", "traj_ids"]] == [
            worker for worker in range(collect.workers) for _ in range(3)
        ]
        assert collector.frames == number * 30 * collect.workers
        assert collector.batches == number


def test_frames_that_do_not_divide_among_more_workers_are_rounded_up() -> None:
    with Collector(Countdown, always_1, workers=2, num_envs=2, frames_per_batch=20) as collector:
        assert next(collector).batch_size == (4, 5)
        collector.add_workers(1)
        wait_until(lambda: next(collector).batch_size == (6, 4))


def test_in_mode_async_frames_per_batch_counts_one_worker(apart: Collect) -> None:
    collector = apart(Countdown, always_1, num_envs=2, frames_per_batch=20, mode="async")
    seen: set[int] = set()
    while seen != {0, 1}:  # one worker may begin much later
        batch = next(collector)
        assert batch.batch_size == (2, 10)
        (worker,) = {split(int(row[0]))[0] for row in batch["collector", "traj_ids"]}
        seen.add(worker)


def test_one_async_worker_continues_while_the_learner_is_busy(apart: Collect) -> None:
    """As TorchRL's aSyncDataCollector does."""
    taken = multiprocessing.get_context("fork").Value("q", 0)

    def counting(observation: Tensor) -> Tensor:
        with taken.get_lock():
            taken.value += 1
        return always_1(observation)

    collector = apart(Countdown, counting, workers=1, num_envs=2, frames_per_batch=20, mode="async")
    batches = []
    for number in range(1, 4):
        batches.append(next(collector))
        wait_until(lambda: taken.value >= 10 * (number + 1))  # noqa: B023  # the next batch, without a request
    whole: Any = torch.cat(batches, dim=1)
    assert whole.batch_size == (2, 30)
    assert torch.equal(whole["observation"][..., 1], (torch.arange(30.0) % 5).expand(2, 30))  # no frame is missing


@pytest.mark.parametrize(("how", "shape"), [("envs", (6, 4)), ("time", (3, 8)), ("stack", (2, 3, 4))])
def test_cat_results_sets_how_workers_fragments_are_joined(apart: Collect, how: str, shape: tuple[int, ...]) -> None:
    batch = next(apart(Countdown, always_1, num_envs=3, frames_per_batch=24, cat_results=how))
    assert batch.batch_size == shape
    assert batch.names[-1] == "time"


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_env_is_a_function_that_makes_a_whole_vector_in_any_autoreset_mode(
    collect: Collect, mode: AutoresetMode
) -> None:
    def make() -> SyncVectorEnv:
        return SyncVectorEnv([partial(Countdown, 5, 7), partial(Countdown, 3, 8)], autoreset_mode=mode)

    batch = next(collect(make, num_envs=2, frames_per_batch=20 * collect.workers))
    assert marks(batch) == [7, 8] * collect.workers
    for row, length in zip(batch, [5, 3] * collect.workers, strict=True):
        assert row["next", "done"].squeeze(-1).nonzero().squeeze(-1).tolist() == list(range(length - 1, 10, length))
        assert torch.equal(row["observation"][:, 1], torch.arange(10.0) % length)


def test_a_list_of_environments_has_one_for_each_worker(collect: Collect) -> None:
    makers = [partial(Countdown, mark=10 + worker) for worker in range(collect.workers)]
    batch = next(collect(makers, num_envs=2, frames_per_batch=8))
    assert marks(batch) == [10 + worker for worker in range(collect.workers) for _ in range(2)]


def test_a_list_of_env_kwargs_has_those_of_each_worker(collect: Collect) -> None:
    kwargs = [{"mark": 20 + worker} for worker in range(collect.workers)]
    batch = next(collect(Countdown, always_1, env_kwargs=kwargs, num_envs=2, frames_per_batch=8))
    assert marks(batch) == [20 + worker for worker in range(collect.workers) for _ in range(2)]


def test_env_kwargs_go_to_an_id_too(collect: Collect) -> None:
    batch = next(collect("Pendulum-v1", env_kwargs={"g": 0.0}, num_envs=1, frames_per_batch=2 * collect.workers))
    before, speed, action = batch["observation"][:, 0], batch["next", "observation"][:, 0, 2], batch["action"][:, 0, 0]
    torch.testing.assert_close(speed, (before[:, 2] + 0.15 * action.clip(-2, 2)).clip(-8, 8))  # gravity is off


def test_max_frames_per_traj_truncates_and_begins_a_new_episode(collect: Collect) -> None:
    collector = collect(partial(Countdown, 1000), always_1, max_frames_per_traj=4, num_envs=2, frames_per_batch=48)
    batch = next(collector)
    frame = batch["observation"][..., 1]
    assert frame.max() == 3
    assert torch.equal(batch["next", "truncated"].squeeze(-1), frame == 3)
    assert not batch["next", "terminated"].any()
    assert (
        batch["next", "observation"][..., 1][frame == 3] == 4
    ).all()  # the episode's last observation, not the next reset's
    assert set(collector.episode_lengths) == {4}


def test_without_reset_when_done_the_rest_of_a_row_is_padding(collect: Collect) -> None:
    frames = 16 * collect.workers
    collector = collect(partial(Countdown, 3), always_1, reset_when_done=False, num_envs=2, frames_per_batch=frames)
    for batch in islice(collector, 2):
        assert (batch["collector", "mask"].sum(1) == 3).all()
        assert (batch["collector", "traj_ids"][~batch["collector", "mask"]] == -1).all()
    assert collector.frames == 2 * 2 * 3 * collect.workers  # padding does not count


def test_trajs_per_batch_gives_whole_trajectories_of_each_worker(collect: Collect) -> None:
    lengths = partial(Countdown, 7)
    collector = collect(lengths, always_1, trajs_per_batch=3, num_envs=2, frames_per_batch=4 * collect.workers)
    ids: set[int] = set()
    for batch in islice(collector, 3):
        assert batch.batch_size == (3 * collect.workers, 7)
        assert (batch["observation"][:, 0, 1] == 0).all()
        assert batch["next", "terminated"][:, -1].all()
        rows = batch["collector", "traj_ids"][:, 0].tolist()
        assert len(set(rows)) == 3 * collect.workers
        assert not ids & set(rows)
        ids |= set(rows)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_trajs_per_batch_needs_no_frames_per_batch(collect: Collect, mode: str) -> None:
    keywords = {} if mode == "sync" or collect.workers == 1 else {"mode": mode}
    batch = next(collect(partial(Countdown, 300), always_1, num_envs=3, trajs_per_batch=2, **keywords))
    assert batch.shape == (2 * (1 if keywords else collect.workers), 300)
    assert batch["next", "done"][:, -1].all()


def test_trajectories_may_follow_each_other_without_padding(collect: Collect) -> None:
    keywords: dict[str, Any] = {"trajs_per_batch": 3, "num_envs": 2, "frames_per_batch": 4 * collect.workers}
    padded = next(collect("CartPole-v1", always_1, **keywords))
    mask = padded["collector", "mask"]
    batch = next(collect("CartPole-v1", always_1, traj_format="cat", **keywords))
    assert not mask.all()
    assert ("collector", "mask") not in batch.keys(True)
    for key in ("observation", ("next", "done"), ("collector", "traj_ids")):
        assert torch.equal(batch[key], padded[key][mask])


def test_init_random_frames_are_random_and_those_after_them_the_policys(collect: Collect) -> None:
    """The policy always takes 1."""
    frames = 40 * collect.workers
    collector = collect(Countdown, always_1, init_random_frames=2 * frames, num_envs=4, frames_per_batch=frames)
    actions = [batch["action"] for batch in islice(collector, 4)]
    for random in actions[:2]:
        assert set(random.flatten().tolist()) == {0, 1}
    for own in actions[2:]:
        assert (own == 1).all()


def test_returns_and_lengths_cover_the_ended_episodes(collect: Collect) -> None:
    collector = collect(partial(Countdown, 5), always_1, num_envs=2, frames_per_batch=24 * collect.workers)
    assert collector.mean_return is None
    next(collector)
    assert list(collector.episode_returns) == [5.0] * 4 * collect.workers
    assert list(collector.episode_lengths) == [5] * 4 * collect.workers
    assert collector.mean_return == 5.0
