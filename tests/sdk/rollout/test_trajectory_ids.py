"""Trajectory ids."""

import numpy as np
import pytest

from rollfleet.rollout.trajectory_ids import MAX_INCARNATIONS, TrajectoryIds, split
from rollfleet_api.job import MAX_WORKERS


def test_an_id_contains_its_worker_incarnation_and_counter() -> None:
    ids = TrajectoryIds(MAX_WORKERS - 1, MAX_INCARNATIONS - 1)
    ids.take(5)
    last = ids.take(2)
    assert last.dtype == np.int64
    assert [split(int(value)) for value in last] == [(65535, 32767, 5), (65535, 32767, 6)]
    assert (last >= 0).all()


def test_an_exhausted_counter_is_an_error_not_another_incarnations_id() -> None:
    ids = TrajectoryIds(0, 0)
    ids.take(5)
    with pytest.raises(OverflowError, match="restart"):
        ids.take((1 << 32) - 4)  # one more than are left
