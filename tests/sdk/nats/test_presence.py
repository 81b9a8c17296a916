"""A NATS that is away, or came back empty, ends nobody: worker, learner and recorder wait until the job is back."""

import logging
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.job_server import Connect, Server, join_all
from tests.waiting import wait_until

import rollfleet
from rollfleet.errors import Timeout
from rollfleet.nats import polling, presence, transport
from rollfleet.nats.streams import deprovision, provision
from rollfleet.nats.transport import NatsTransport
from rollfleet_api.messages import WorkerState
from rollfleet_api.permissions import Role

ASYNC: dict[str, Any] = {
    "mode": "Async",
    "workers": 1,
    "policy": {"random": {}},
    "collect": {"framesPerBatch": 16},
}
WAITS = "NATS came back without this job; waiting until the job's owner recreates it"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let seconds of patience be fractions of a second."""
    monkeypatch.setattr(presence, "WARN_AFTER_S", 0.5)
    monkeypatch.setattr(presence, "DELETED_AFTER_S", 0.1)
    monkeypatch.setattr(polling, "POLL_EVERY_S", 0.05)


def test_a_transport_that_cannot_be_made_leaves_no_thread(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "TAKE_OVER_TIMEOUT_S", 0.5)
    job, link = server.provision(**ASYNC), server.link()
    link.call(deprovision(link), timeout_s=10)
    before = set(threading.enumerate())
    with pytest.raises(Timeout):
        NatsTransport(link, job)
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("impatient")
def test_a_nats_that_came_back_empty_is_waited_for(
    server: Server, connect: Connect, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    job = server.provision(**ASYNC)
    worker, owner = server.start_worker(job, 0), server.link()
    recorder = rollfleet.record(server.subjects.key, tmp_path, address=server.url(Role.LEARNER), timeout_s=10)
    with recorder, connect() as collector:
        list(islice(collector, 3))
        with caplog.at_level(logging.WARNING):
            server.kill()
            server.start_again()
            wait_until(lambda: sum(WAITS in message for message in caplog.messages) >= 3)  # worker, learner, recorder
        owner.call(provision(owner, job), timeout_s=10)
        list(islice(collector, 3))
        before = recorder.counts().batches
        list(islice(collector, 3))
        wait_until(lambda: recorder.counts().batches > before)
    join_all([worker])
    assert worker.transport.incarnation == 0
    assert worker.status is not None
    assert worker.status.state is WorkerState.COMPLETE
