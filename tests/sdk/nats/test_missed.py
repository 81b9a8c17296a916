"""A worker reads missed messages from storage, and the end of a job is always stored."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import pytest

from rollfleet import ActorCritic, Collector, CollectorJob
from rollfleet.nats import transport as nats
from rollfleet.nats.link import Link
from rollfleet.nats.state import read_state
from rollfleet.nats.transport import NatsTransport
from rollfleet_api.messages import Control, LearnerPhase, WorkerState
from rollfleet_api.permissions import Role

if TYPE_CHECKING:
    from tests.job_server import Server, WorkerThread

CARTPOLE = gymnasium.make("CartPole-v1")
SPEC: dict[str, Any] = {
    "mode": "Sync",
    "workers": 1,
    "env": {"id": "CartPole-v1", "numEnvs": 4},
    "policy": {"mlp": {}},
    "collect": {"framesPerBatch": 32},
}


def deafen(link: Link) -> None:
    """End all subscriptions of a worker except those for answers to its requests."""

    async def unsubscribe() -> None:
        for subscription in list(link.client._subs.values()):
            if subscription.subject.startswith(link.subjects.prefix):
                await subscription.unsubscribe()

    link.call(unsubscribe())


def test_a_worker_that_missed_every_message_continues_from_stored_ones(
    server: "Server", connect: Callable[..., Collector], start_worker: "Callable[[CollectorJob, int], WorkerThread]"
) -> None:
    worker = start_worker(server.provision(**SPEC), 0)
    worker.wait_for(WorkerState.WAITING_FOR_LEARNER)
    deafen(worker.transport._link)
    collector = connect(ActorCritic(CARTPOLE.observation_space, CARTPOLE.action_space))
    assert next(collector).batch_size == (4, 8)
    collector.update_policy_weights_()
    assert next(collector)["collector", "policy_version"].unique().tolist() == [2]


def test_a_learner_that_ends_while_nats_is_away_waits_to_store_the_end_of_the_job(
    server: "Server", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "FLUSH_TIMEOUT_S", 0.0)  # the limit for other messages
    transport = NatsTransport(server.link(Role.LEARNER), server.provision(**SPEC))
    server.kill()
    transport.control(Control(session=transport.resumed.session, phase=LearnerPhase.COMPLETE, round=1, version=0))
    closing = threading.Thread(target=transport.close)
    closing.start()
    server.start_again()
    closing.join(nats.END_TIMEOUT_S)
    reader = server.link()
    control = reader.call(read_state(reader, server.subjects.control, Control), timeout_s=10)
    assert control is not None
    assert control.phase is LearnerPhase.COMPLETE
