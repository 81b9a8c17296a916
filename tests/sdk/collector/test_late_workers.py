"""A round that closed before a worker had begun does not wait for it: that worker waits for the next round."""

import time
from typing import Any

import pytest
from tests.job_server import Connect, Server, StartWorker, actor_critic
from tests.sdk.collector.concurrent_calls import begin

from rollfleet import CollectorJob
from rollfleet.data.batch import MASK
from rollfleet_api.messages import WorkerState


def job_of(server: Server, workers: int) -> CollectorJob:
    return server.provision(
        mode="Sync",
        workers=workers,
        env={"id": "CartPole-v1", "numEnvs": 2},
        collect={"framesPerBatch": 16 * workers},
        stragglers={"threshold": 0.5},
    )


@pytest.mark.parametrize("comes", [False, True], ids=["never", "late"])
def test_a_worker_that_comes_after_a_round_closed_takes_part_in_the_next(
    comes: bool, server: Server, connect: Connect, start_worker: StartWorker
) -> None:
    job = job_of(server, workers=2)
    workers = [start_worker(job, 0)]
    collector = connect(actor_critic())
    first = begin(next, collector)
    transport: Any = collector._transport
    while not collector._director.run_state.closed:
        assert not first.done()
        time.sleep(0.01)
    if comes:
        workers.append(start_worker(job, 1))
        workers[1].wait_for(WorkerState.WAITING_FOR_LEARNER)
    batch = first.result(20)
    assert batch.shape == (4, 8)
    assert batch[MASK].all(1).tolist() == [True, True, False, False]
    if comes:
        while not next(collector)[MASK][2:].any():
            assert set(transport.workers()) == {0, 1}
    collector.shutdown()
    for worker in workers:
        worker.join()
        assert worker.error is None
