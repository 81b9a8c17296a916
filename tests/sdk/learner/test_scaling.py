"""The number of workers changes during a run, and the iterator continues: real workers, a real nats-server."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.job_server import Connect, Server, actor_critic, join_all
from tests.sdk.batch_sender import Sender
from tests.sdk.concurrent_calls import begin
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet_api.messages import LearnerStatus, WorkerStatus

FRAMES, ENVS = 48, 2  # which 1, 2, 3 and 4 workers divide evenly
ENV, COLLECT = {"id": "CartPole-v1", "numEnvs": ENVS}, {"framesPerBatch": FRAMES}
SYNC: dict[str, Any] = {"mode": "Sync", "env": ENV, "policy": {"random": {}}, "collect": COLLECT}
ROUNDS = 200  # within which a change must take effect


def until_shared_among(workers: int, collector: Collector) -> None:
    """Iterate until batches come from this many workers. No batch meanwhile has more frames than configured."""
    for _ in range(ROUNDS):
        batch = next(collector)
        frames = int((batch["collector", "traj_ids"] >= 0).sum())
        assert frames <= FRAMES
        if tuple(batch.shape) == (ENVS * workers, FRAMES // (ENVS * workers)) and frames == FRAMES:
            return
    pytest.fail(f"the batches are still not of {workers} workers but {tuple(batch.shape)}")


def test_sync_job_goes_from_2_to_4_to_1_to_2_workers_with_batches_of_the_same_frames(
    server: Server, connect: Connect
) -> None:
    started = server.start_workers(**SYNC, workers=2)
    collector = connect()
    until_shared_among(2, collector)

    job = server.own(**SYNC, workers=4)
    started += [server.start_worker(job, index) for index in (2, 3)]
    until_shared_among(4, collector)

    for worker in started[1:]:
        worker.leave()
    server.own(**SYNC, workers=1)
    until_shared_among(1, collector)
    join_all(started[1:])

    started.append(server.start_worker(server.own(**SYNC, workers=2), 1))
    until_shared_among(2, collector)
    collector.shutdown()
    join_all(started)
    assert [worker.transport.incarnation for worker in started] == [0, 0, 0, 0, 1]  # no worker restarted


def test_the_default_of_max_lag_follows_the_number_of_workers(server: Server, connect: Connect) -> None:
    spec = SYNC | {"mode": "Async", "weights": {"interval": 0}, "delivery": {"maxBatchesAhead": 2}}
    server.own(**spec, workers=1)
    collector, sender = connect(actor_critic()), Sender(server, 0)
    for _ in range(10):
        collector.update_policy_weights_()
    assert [sender.admitted(collector, lag=lag) for lag in (4, 5)] == [True, False]
    server.own(**spec, workers=3)
    for index in (1, 2):
        server.worker_transport(index).report(WorkerStatus(worker=index, incarnation=0))
    while not sender.admitted(collector, lag=8):
        pass
    assert not sender.admitted(collector, lag=9)


def test_the_learner_reports_its_loops_wait_for_data(server: Server, connect: Connect) -> None:
    job = server.own(**SYNC, workers=1)
    collector = connect()
    worker = server.start_worker(job, 0)
    next(collector)
    first_s = reported(server, lambda status: status.waited_s).waited_s or 0.0
    worker.leave()
    worker.join()
    waiting = begin(next, collector)
    reported(server, lambda status: status.waited_s and status.waited_s > first_s + 0.8)
    server.start_worker(job, 0)
    waiting.result(60)


def test_the_learner_reports_the_number_of_episodes(server: Server, connect: Connect) -> None:
    server.start_workers(**SYNC, workers=1)
    collector = connect()
    while len(collector.episode_returns) < 3:
        next(collector)
    reported(server, lambda status: status.episodes == len(collector.episode_returns))


def test_the_reported_lowest_version_covers_present_workers_only(server: Server, connect: Connect) -> None:
    workers = server.start_workers(**SYNC | {"mode": "Async", "policy": {"mlp": {}}}, workers=2)
    collector = connect(actor_critic())
    while set(collector.versions()) != {0, 1}:
        next(collector)
    workers[1].leave()
    while collector.workers != (0,):
        next(collector)
    left_at = collector.stats().workers[1].version
    reported(server, lambda status: next(collector) is not None and status.applied_version > left_at)


def reported(server: Server, holds: Callable[[LearnerStatus], object]) -> LearnerStatus:
    """Return the learner's heartbeat, once this holds for it."""
    heard = server.hear(server.subjects.learner(0), LearnerStatus)
    wait_until(lambda: heard and holds(heard[-1]))
    return heard[-1]
