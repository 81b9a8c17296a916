"""Ranks: their names, and what rank 0 and the peers know of each other."""

from itertools import chain
from typing import Any

import pytest
from tests.job_server import Server

from rollfleet.nats.peer_ranks import LeaderView, PeerRanks
from rollfleet.transports.learner_side import PeerTotals
from rollfleet_api.messages import Control, LearnerPhase, RankStatus
from rollfleet_api.permissions import Role
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


def status(rank: int = 1, process: str = "a", ranks: int = 2, **more: Any) -> RankStatus:
    return RankStatus(rank=rank, ranks=ranks, process=process, **more)


def test_frames_of_all_processes_of_a_rank_are_counted_once() -> None:
    peers = PeerRanks(Rank(0, 3))
    assert peers.totals() == PeerTotals()
    peers.hear(status(ranks=3, frames=10, batches=1))
    peers.hear(status(ranks=3, frames=30, batches=3, dropped=1))
    peers.hear(status(ranks=3, rank=2, frames=5, batches=1))
    peers.hear(status(ranks=3, process="b", frames=10, batches=1))
    peers.hear(status(ranks=3, frames=30, batches=3, dropped=1))  # a replaced process that still sends
    assert peers.totals() == PeerTotals(frames=45, batches=5, dropped=1)
    peers.hear(status(ranks=3, process="c", frames=1, restored=40))  # the 40 are those of earlier processes
    assert peers.totals().frames == 46
    peers.hear(RankStatus(rank=1, ranks=2, process="d", frames=100))  # of another learner
    assert peers.totals().frames == 46


def test_a_silent_rank_or_one_that_left_is_not_waited_for() -> None:
    peers = PeerRanks(Rank(0, 2))
    peers.hear(status(session=2, round=6))
    assert not peers.wait_for_round(2, 7, timeout_s=0)
    assert peers.wait_for_round(2, 6, timeout_s=0)
    for _ in range(10):
        assert not peers.wait_for_round(2, 7, timeout_s=0)
        peers.tick()
    assert peers.wait_for_round(2, 7, timeout_s=0)
    peers.hear(status(session=2, round=6))
    assert not peers.wait_for_round(2, 7, timeout_s=0)
    peers.hear(status(session=2, round=6, left=True))
    assert peers.wait_for_round(2, 7, timeout_s=0)
    peers.hear(status(process="b", session=1, round=9))
    assert not peers.wait_for_round(2, 7, timeout_s=0)  # it has not heard of this session yet


def test_a_rank_that_never_reported_is_waited_for_as_long_as_a_silent_one() -> None:
    peers = PeerRanks(Rank(0, 2))
    for _ in range(10):
        assert not peers.wait_for_round(2, None, timeout_s=0)
        assert not peers.wait_for_round(2, 7, timeout_s=0)
        peers.tick()
    assert peers.wait_for_round(2, None, timeout_s=0)
    assert peers.wait_for_round(2, 7, timeout_s=0)
    peers.forget_missed()
    assert not peers.wait_for_round(2, None, timeout_s=0)
    peers.hear(status())
    assert peers.wait_for_round(2, None, timeout_s=0)


def test_the_newest_control_counts_and_complete_is_final(server: Server) -> None:
    def control(session: int, round_: int, phase: LearnerPhase = LearnerPhase.RUN) -> Control:
        return Control(session=session, phase=phase, round=round_, version=1)

    view = LeaderView(server.link(Role.LEARNER), Rank(1, 2), "a")
    view.hear(control(2, 5), joining=True)
    view.hear(control(1, 9))
    assert view.control == control(2, 5)
    view.hear(control(2, 6, LearnerPhase.COMPLETE))
    view.hear(control(2, 6))
    assert view.control == control(2, 6, LearnerPhase.COMPLETE)
    view.hear(control(3, 7))
    assert view.control == control(3, 7)
