"""Ranks: their names, and their workers."""

import pytest

from rollfleet_api.ranks import ALONE, Rank


@pytest.mark.parametrize(
    ("rank", "name"), [(ALONE, "learner"), (Rank(0, 2), "learner-0-of-2"), (Rank(11, 12), "learner-11-of-12")]
)
def test_a_ranks_name_tells_it_from_all_others(rank: Rank, name: str) -> None:
    assert rank.name == name


def test_every_worker_belongs_to_one_rank() -> None:
    for worker in range(8):
        assert sum(Rank(rank, 3).has(worker) for rank in range(3)) == 1
        assert ALONE.has(worker)
