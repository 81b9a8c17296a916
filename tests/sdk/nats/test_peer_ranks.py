"""What a rank is, and what rank 0 and the others know of each other."""

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from rollfleet.nats.peer_ranks import LeaderView, PeerRanks
from rollfleet.transports.learner_side import Elsewhere
from rollfleet_api.messages import Control, LearnerPhase, RankStatus
from rollfleet_api.permissions import Role
from rollfleet_api.ranks import ALONE, Rank
from rollfleet_api.subjects import Subjects

if TYPE_CHECKING:
    from tests.job_server import Server


@pytest.mark.parametrize("rank", [ALONE, Rank(0, 2), Rank(11, 12)])
def test_a_consumers_name_tells_its_rank(rank: Rank) -> None:
    assert Rank.of_consumer(rank.consumer) == rank


@pytest.mark.parametrize("name", ["", "mine", "learner-", "learner-0-of-1", "learner-2-of-2", "learner-00-of-2"])
def test_other_names_are_no_ranks(name: str) -> None:
    assert Rank.of_consumer(name) is None


def test_every_worker_belongs_to_one_rank() -> None:
    subjects = Subjects(namespace="default", job="test")
    filters = [Rank(rank, 3).filters(subjects, 8) for rank in range(3)]
    assert sorted(chain(*filters)) == sorted(subjects.batches_of(worker) for worker in range(8))
    assert ALONE.filters(subjects, 8) == []
    assert Rank(2, 3).filters(subjects, 1) == [subjects.batches_of(2)]  # none at all would be everything


def told(rank: int = 1, life: str = "a", ranks: int = 2, **more: Any) -> RankStatus:
    return RankStatus(rank=rank, ranks=ranks, life=life, **more)


def test_frames_of_all_lives_of_a_rank_are_counted_once() -> None:
    others = PeerRanks(Rank(0, 3))
    assert others.elsewhere() == Elsewhere()
    others.hear(told(ranks=3, frames=10, batches=1))
    others.hear(told(ranks=3, frames=30, batches=3, dropped=1))
    others.hear(told(ranks=3, rank=2, frames=5, batches=1))
    others.hear(told(ranks=3, life="b", frames=10, batches=1))
    others.hear(told(ranks=3, frames=30, batches=3, dropped=1))  # it was replaced, and does not know
    assert others.elsewhere() == Elsewhere(frames=45, batches=5, dropped=1)
    others.hear(told(ranks=3, life="c", frames=1, restored=40))  # the 40 are those of the lives before
    assert others.elsewhere().frames == 46
    others.hear(RankStatus(rank=1, ranks=2, life="d", frames=100))  # of another learner
    assert others.elsewhere().frames == 46


def test_who_is_silent_or_has_left_is_not_waited_for() -> None:
    others = PeerRanks(Rank(0, 2))
    others.hear(told(session=2, round=6))
    assert not others.wait_for(2, 7, timeout_s=0)
    assert others.wait_for(2, 6, timeout_s=0)
    for _ in range(10):
        assert not others.wait_for(2, 7, timeout_s=0)
        others.tick()
    assert others.wait_for(2, 7, timeout_s=0)
    others.hear(told(session=2, round=6))
    assert not others.wait_for(2, 7, timeout_s=0)
    others.hear(told(session=2, round=6, left=True))
    assert others.wait_for(2, 7, timeout_s=0)
    others.hear(told(life="b", session=1, round=9))
    assert not others.wait_for(2, 7, timeout_s=0)  # it has not heard of this session yet


def test_who_was_never_heard_of_is_waited_for_as_long_as_one_that_is_silent() -> None:
    others = PeerRanks(Rank(0, 2))
    for _ in range(10):
        assert not others.wait_for(2, None, timeout_s=0)
        assert not others.wait_for(2, 7, timeout_s=0)
        others.tick()
    assert others.wait_for(2, None, timeout_s=0)
    assert others.wait_for(2, 7, timeout_s=0)
    others.begin_anew()
    assert not others.wait_for(2, None, timeout_s=0)
    others.hear(told())
    assert others.wait_for(2, None, timeout_s=0)


def test_a_round_may_be_closed_once_every_rank_has_enough_of_it() -> None:
    others = PeerRanks(Rank(0, 3))
    others.hear(told(ranks=3, session=2, round=6, enough=7))
    others.hear(told(ranks=3, rank=2, session=2, round=6))
    assert not others.may_close(2, 7)
    others.hear(told(ranks=3, rank=2, session=2, round=7))  # joined in the middle of it
    assert others.may_close(2, 7)


def test_what_was_said_last_holds_and_complete_is_said_for_good(server: "Server") -> None:
    def control(session: int, round_: int, phase: LearnerPhase = LearnerPhase.RUN) -> Control:
        return Control(session=session, phase=phase, round=round_, version=1)

    lead = LeaderView(server.link(Role.LEARNER), Rank(1, 2), "a")
    lead.hear(control(2, 5), joining=True)
    lead.hear(control(1, 9))
    assert lead.control == control(2, 5)
    lead.hear(control(2, 6, LearnerPhase.COMPLETE))
    lead.hear(control(2, 6))
    assert lead.control == control(2, 6, LearnerPhase.COMPLETE)
    lead.hear(control(3, 7))
    assert lead.control == control(3, 7)
