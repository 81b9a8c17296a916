"""Ranks, and their workers."""

from rollfleet_api.ranks import ALONE, Rank


def test_every_worker_belongs_to_one_rank() -> None:
    for worker in range(8):
        assert sum(Rank(rank, 3).has(worker) for rank in range(3)) == 1
        assert ALONE.has(worker)
