from typing import Any

import torch
from tensordict import TensorDict

from rollfleet import Collector
from rollfleet.rollout.dense_ids import DenseIds
from rollfleet.rollout.trajectory_ids import TrajectoryIds


def ids_of(worker: int, incarnation: int = 0) -> list[int]:
    taken: list[int] = TrajectoryIds(worker, incarnation).take(4).tolist()
    return taken


def numbered(dense: DenseIds, rows: list[list[int]]) -> list[list[int]]:
    ids = torch.tensor(rows)
    result: list[list[int]] = dense(TensorDict({"collector": {"traj_ids": ids}}, ids.shape))[
        "collector", "traj_ids"
    ].tolist()
    return result


def test_trajectories_are_numbered_in_the_order_of_their_first_batch() -> None:
    dense, first, second = DenseIds(), ids_of(0), ids_of(3)
    assert numbered(dense, [[second[0], second[0]], [first[0], first[1]]]) == [[2, 2], [0, 1]]
    assert numbered(dense, [[first[1], first[2]]]) == [[1, 3]]
    assert numbered(dense, [[second[0], second[1]]]) == [[2, 4]]
    assert dense.count == 5


def test_a_restarted_worker_begins_new_trajectories_and_padding_stays_minus_1() -> None:
    dense = DenseIds()
    assert numbered(dense, [[ids_of(1)[0], -1]]) == [[0, -1]]
    assert numbered(dense, [[ids_of(1, incarnation=1)[0], -1]]) == [[1, -1]]


def test_only_trajectories_that_may_continue_are_remembered() -> None:
    dense, counter = DenseIds(), TrajectoryIds(0, 0)
    for _ in range(100):
        numbered(dense, [counter.take(5).tolist()])
    assert len(dense._numbers) == 5
    assert dense.count == 500


def test_a_run_has_every_number_once() -> None:
    options: Any = {"num_envs": 3, "frames_per_batch": 60, "total_frames": 600, "max_frames_per_traj": 7}
    with (
        Collector("CartPole-v1", postproc=DenseIds(), **options) as numbered,
        Collector("CartPole-v1", **options) as own,
    ):
        mine, theirs = ([batch["collector", "traj_ids"] for batch in each] for each in (numbered, own))
    pairs = {(int(a), int(b)) for a, b in zip(torch.cat(mine).flatten(), torch.cat(theirs).flatten(), strict=True)}
    assert sorted(number for number, _ in pairs) == list(range(len(pairs)))
    assert len({original for _, original in pairs}) == len(pairs)
