"""The heartbeats of a job, on the learner's side."""

from tests.job_server import Server
from tests.waiting import wait_until

from rollfleet.nats.heartbeats import LearnerHeartbeats
from rollfleet_api.messages import Control, LearnerPhase, Progress, WorkerStatus, pack
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


def test_a_rank_hears_a_worker_that_was_started_again(server: Server) -> None:
    job, link, worker = server.own(), server.link(Role.LEARNER), server.link(Role.WORKER)
    beats = LearnerHeartbeats(link, job, Rank(1, 2), lambda: None, nothing)

    def hears(incarnation: int, process: int) -> None:
        status = WorkerStatus(worker=0, incarnation=incarnation, process=process, follows=Progress(session=1))
        worker.call(worker.publish(worker.subjects.worker(0), pack(status)))
        wait_until(lambda: [each.process for each in beats.roster.statuses().values()] == [process], 20)

    link.call(beats.hear(0.0))
    hears(0, 7)
    link.call(beats.begin(Progress(session=0)))
    hears(1, 9)
