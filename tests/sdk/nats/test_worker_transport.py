"""The worker's side of a job, over a real nats-server."""

from tests.job_server import Server
from tests.waiting import wait_until

from rollfleet.nats.worker_transport import HEARTBEAT_S
from rollfleet_api.messages import WorkerState, WorkerStatus


def test_a_worker_reports_a_batch_at_once_and_the_begin_of_the_next_one_with_its_next_heartbeat(server: Server) -> None:
    server.own()
    heard = server.hear(server.subjects.workers, WorkerStatus)
    transport = server.worker_transport(0)
    collected = WorkerStatus(worker=0, incarnation=0, state=WorkerState.COLLECTING, batches=1)
    try:
        transport.report(collected)
        wait_until(lambda: heard)
        transport.report(collected)  # it begins
        wait_until(lambda: len(heard) == 2)
        transport.report(WorkerStatus(worker=0, incarnation=0, state=WorkerState.COLLECTING, batches=2))
        wait_until(lambda: len(heard) == 3)
    finally:
        transport.close()
    first, begin, second = heard[:3]
    assert begin.time_s - first.time_s > 0.9 * HEARTBEAT_S > second.time_s - begin.time_s
    assert (first.batches, begin.batches, second.batches) == (1, 1, 2)
