"""The worker's side of a job, over a real nats-server."""

from contextlib import closing

import pytest
from tests.job_server import Server
from tests.waiting import wait_until

from rollfleet.nats import worker_transport
from rollfleet.nats.worker_transport import HEARTBEAT_S
from rollfleet_api.messages import WorkerState, WorkerStatus


def collecting(batches: int) -> WorkerStatus:
    return WorkerStatus(worker=0, incarnation=0, state=WorkerState.COLLECTING, batches=batches)


def test_a_worker_reports_a_batch_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_transport, "HEARTBEAT_S", 600.0)
    server.own()
    heard = server.hear(server.subjects.workers, WorkerStatus)
    with closing(server.worker_transport(0)) as transport:
        for batches in (1, 2):
            transport.report(collecting(batches))
            wait_until(lambda: heard and heard[-1].batches == batches)  # noqa: B023


def test_a_worker_reports_the_begin_of_a_batch_with_its_next_heartbeat(server: Server) -> None:
    server.own()
    heard = server.hear(server.subjects.workers, WorkerStatus)
    with closing(server.worker_transport(0)) as transport:
        for count in (1, 2):  # it collected a batch, and begins another
            transport.report(collecting(1))
            wait_until(lambda: len(heard) >= count)  # noqa: B023
    first, begin = heard[:2]
    assert begin.time_s - first.time_s > 0.9 * HEARTBEAT_S
