"""A worker reads missed messages from storage, and the end of a job is always stored."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.job_server import Connect, Server, actor_critic, deafen
from tests.waiting import wait_until

from rollfleet.nats import polling, state
from rollfleet.nats import transport as nats
from rollfleet.nats.state import read_state
from rollfleet.nats.transport import NatsTransport
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.weights.layout import WeightLayout, state_of
from rollfleet_api.messages import Control, LearnerPhase, WorkerState
from rollfleet_api.permissions import Role

SPEC: dict[str, Any] = {
    "mode": "Sync",
    "workers": 1,
    "env": {"id": "CartPole-v1", "numEnvs": 4},
    "policy": {"mlp": {}},
    "collect": {"framesPerBatch": 32},
}


def test_a_worker_that_missed_every_message_continues_from_stored_ones(server: Server, connect: Connect) -> None:
    worker = server.start_worker(server.provision(**SPEC), 0)
    worker.wait_for(WorkerState.WAITING_FOR_LEARNER)
    deafen(worker.transport._link)
    collector = connect(actor_critic())
    assert next(collector).batch_size == (4, 8)
    collector.update_policy_weights_()
    assert next(collector)["collector", "policy_version"].unique().tolist() == [2]


def test_a_worker_whose_request_for_weights_is_lost_asks_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state, "REQUEST_TIMEOUT_S", 0.1)
    server.own(**SPEC)
    worker = NatsWorkerTransport(server.link(Role.WORKER), 0)
    server.kill()
    caplog.set_level(logging.DEBUG, polling.__name__)
    caplog.clear()
    with ThreadPoolExecutor() as pool:
        following = pool.submit(worker.follow_weights, WeightLayout({"policy": state_of(actor_critic())}))
        wait_until(lambda: "asking again" in caplog.text or following.done())
        server.start_again()
        following.result(60)
    worker.close()


def test_a_learner_asks_again_if_its_first_request_is_lost(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, read_spec = [TimeoutError()], NatsTransport._read_spec

    async def lost_once(transport: NatsTransport) -> None:
        if losses:
            raise losses.pop()
        await read_spec(transport)

    monkeypatch.setattr(NatsTransport, "_read_spec", lost_once)
    transport = NatsTransport(server.link(Role.LEARNER), server.provision(**SPEC))
    assert transport.resumed.session == 1
    transport.close()


def test_a_learner_waits_for_nats_to_store_the_end_of_its_job(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats, "FLUSH_TIMEOUT_S", 0.0)  # the limit for other messages
    transport = NatsTransport(server.link(Role.LEARNER), server.own(**SPEC))
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
