"""The heartbeats of a job, on the learner's side."""

from tests.job_server import Server

from rollfleet.nats.heartbeats import LearnerHeartbeats
from rollfleet_api.messages import Control, LearnerPhase
from rollfleet_api.permissions import Role
from rollfleet_api.ranks import Rank


async def nothing() -> None: ...


def control(session: int, round_: int, phase: LearnerPhase = LearnerPhase.RUN) -> Control:
    return Control(session=session, number=round_, phase=phase, round=round_, version=1)


def test_the_newest_control_of_rank_0_counts_and_complete_is_final(server: Server) -> None:
    beats = LearnerHeartbeats(server.link(Role.LEARNER), server.own(), Rank(1, 2), lambda: None, nothing)
    beats.hear_leader(control(2, 5))
    beats.hear_leader(control(1, 9))
    assert beats.leader_control == control(2, 5)
    beats.hear_leader(control(2, 6, LearnerPhase.COMPLETE))
    beats.hear_leader(control(2, 6))
    assert beats.leader_control == control(2, 6, LearnerPhase.COMPLETE)
    beats.hear_leader(control(3, 7))
    assert beats.leader_control == control(3, 7)
