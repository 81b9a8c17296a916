"""A process that missed messages asks those who have them."""

import threading

import pytest
from tests.job_server import Server, actor_critic, lose_next
from tests.sdk.nats.numbered_batches import SYNC
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet.nats import transport as nats
from rollfleet.nats.transport import NatsTransport
from rollfleet.testing.rig import run
from rollfleet_api.messages import LearnerPhase, WorkerState
from rollfleet_api.permissions import Role


@pytest.mark.parametrize("kind", ["control", "weights", "workers", "taken", "wants", "ask"])
def test_lost_messages_delay_a_round_and_are_repeated_or_asked_for(kind: str, server: Server) -> None:
    job, of_worker, of_learner = (
        server.own(**SYNC | {"workers": 1}),
        server.link(Role.WORKER),
        server.link(Role.LEARNER),
    )
    server.start_worker(job, 0, link=of_worker).wait_for(WorkerState.WAITING_FOR_LEARNER)
    collector = Collector.over(server.learner_transport(of_learner), job, actor_critic())
    for version in (1, 2):
        lost = lose_next(of_worker if kind in ("workers", "wants", "ask") else of_learner, kind, 1)
        assert next(collector)["collector", "policy_version"].unique().tolist() == [version]
        assert lost or kind not in ("control", "weights")


def test_workers_hear_the_end_of_their_job_over_a_server_that_restarts(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "FLUSH_TIMEOUT_S", 0.0)  # the limit for other messages
    job = server.own(**SYNC | {"workers": 1})
    learner, worker = NatsTransport(server.link(Role.LEARNER), job), server.start_worker(job, 0)
    run(learner, version=0, round=1)
    wait_until(lambda: worker.transport.control)
    server.kill()
    run(learner, version=0, round=1, phase=LearnerPhase.COMPLETE)
    closing = threading.Thread(target=learner.close)
    closing.start()
    server.start_again()
    closing.join(nats.END_TIMEOUT_S)
    worker.join()
    assert worker.status is not None
    assert worker.status.state is WorkerState.COMPLETE
