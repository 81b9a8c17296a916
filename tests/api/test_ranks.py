"""Ranks: their names, and their workers."""

from itertools import chain

import pytest

from rollfleet_api.ranks import ALONE, Rank
from rollfleet_api.subjects import Subjects


@pytest.mark.parametrize("rank", [ALONE, Rank(0, 2), Rank(11, 12)])
def test_a_consumers_name_contains_its_rank(rank: Rank) -> None:
    assert Rank.of_consumer(rank.consumer) == rank


@pytest.mark.parametrize("name", ["", "mine", "learner-", "learner-0-of-1", "learner-2-of-2", "learner-00-of-2"])
def test_other_names_are_no_ranks(name: str) -> None:
    assert Rank.of_consumer(name) is None


def test_every_worker_belongs_to_one_rank() -> None:
    subjects = Subjects(namespace="default", job="test")
    filters = [Rank(rank, 3).filters(subjects, 8) for rank in range(3)]
    assert sorted(chain(*filters)) == sorted(subjects.batches_of(worker) for worker in range(8))
    assert ALONE.filters(subjects, 8) == []
    assert Rank(2, 3).filters(subjects, 1) == [subjects.batches_of(2)]  # an empty list would mean every worker
