"""Edits of a job reach the learner that runs: real workers, a real nats-server."""

from typing import Any

import pytest
from tests.job_server import Connect, Server, actor_critic
from tests.sdk.batch_sender import Sender
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet_api.messages import WorkerStatus, pack
from rollfleet_api.permissions import Role

FRAMES = 16
SPEC: dict[str, Any] = {"env": {"id": "CartPole-v1", "numEnvs": 2}, "collect": {"framesPerBatch": FRAMES}}


def known(collector: Collector, **spec: Any) -> None:
    """Wait until the learner has heard of this edit."""
    wait_until(lambda: all(getattr(collector.job.spec, field) == value for field, value in spec.items()))


def test_loop_ends_at_total_frames_that_are_set_while_it_runs(server: Server, connect: Connect) -> None:
    worker = server.start_worker(job := server.own(**SPEC), 0)
    collector = connect(actor_critic())
    for _ in range(3):
        next(collector)
    edited = server.own(**SPEC | {"collect": {"framesPerBatch": FRAMES, "totalFrames": 5 * FRAMES}})
    known(collector, collect=edited.spec.collect)
    assert job.spec.collect.total_frames == 0
    assert [batch.numel() for batch in collector] == [FRAMES] * 2
    assert (collector.frames, collector.total_frames) == (5 * FRAMES, 5 * FRAMES)
    worker.join()


def test_weights_go_out_at_the_interval_that_is_set_while_it_runs(server: Server, connect: Connect) -> None:
    server.start_workers(**SPEC)
    with connect(actor_critic()) as collector:
        for _ in range(3):
            next(collector)
        assert collector.version == 3
        edited = server.own(**SPEC | {"weights": {"interval": 4, "maxLag": 1}})
        known(collector, weights=edited.spec.weights)
        versions = [collector.version for _ in zip(range(8), collector, strict=False)]
        assert versions == [3, 3, 3, 4, 4, 4, 4, 5]


def test_batches_older_than_a_lag_that_is_set_while_it_runs_are_dropped(server: Server, connect: Connect) -> None:
    spec = SPEC | {"delivery": {"maxBatchesAhead": 2}, "weights": {"interval": 0, "maxLag": 2}}
    server.own(**spec)
    collector, sender = connect(actor_critic()), Sender(server, 0)
    for _ in range(3):
        collector.update_policy_weights_()
    assert sender.admitted(collector, lag=2)
    server.own(**spec | {"weights": {"interval": 0, "maxLag": 1}})
    while sender.admitted(collector, lag=2):
        pass
    assert sender.admitted(collector, lag=1)


def test_time_until_a_worker_counts_as_stuck_may_change(
    server: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server.own(**SPEC | {"failure": {"suspectAfterSeconds": 60}})
    collector, link = connect(), server.link(Role.WORKER)
    status = WorkerStatus(worker=0, incarnation=0, in_step_s=30.0)
    link.call(link.publish(link.subjects.worker(0), pack(status)))
    wait_until(collector.versions)
    assert not caplog.messages
    edited = server.own(**SPEC | {"failure": {"suspectAfterSeconds": 20}})
    known(collector, failure=edited.spec.failure)
    wait_until(lambda: "worker 0 has been in one environment step for 30 s" in caplog.text)


def test_whole_trajectories_that_are_set_while_it_runs_are_received(server: Server, connect: Connect) -> None:
    spec = SPEC | {"mode": "Sync"}
    server.own(**spec)
    collector = connect(actor_critic())
    edited = server.own(**spec | {"collect": {"framesPerBatch": FRAMES, "trajsPerBatch": 8}})
    known(collector, collect=edited.spec.collect)
    server.start_worker(edited, 0)
    assert len(next(collector)) == 8
    assert collector.stats().corrupt == 0
