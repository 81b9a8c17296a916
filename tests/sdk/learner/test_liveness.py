"""Slow and stuck workers are reported by name. A learner that is busy for long is neither."""

import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.job_server import Connect, Server, actor_critic
from tests.sdk.counting import WaitsForFile
from tests.sdk.places import Collect
from tests.waiting import wait_until

from rollfleet import Stats
from rollfleet.learner import gathering
from rollfleet_api.messages import WorkerState, WorkerStatus, pack
from rollfleet_api.permissions import Role

ASYNC: dict[str, Any] = {"mode": "Async", "workers": 1, "policy": {"random": {}}, "collect": {"framesPerBatch": 8}}
SUSPECT: dict[str, Any] = {"failure": {"suspectAfterSeconds": 3}}


def test_a_hanging_step_is_reported_with_its_worker_and_seconds_until_it_ends(
    apart: Collect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = tmp_path / "go"

    def go_when_reported() -> None:
        try:
            wait_until(lambda: "worker 0 has been in one environment step for " in caplog.text)
        finally:
            go.touch()

    keywords = {"mode": "async", "workers": 1, "num_envs": 1, "frames_per_batch": 8, "suspect_after_s": 3}
    collector = apart(WaitsForFile, env_kwargs={"step": 12, "file": go}, **keywords)
    next(collector)
    assert "environment step" not in caplog.text
    reporting = threading.Thread(target=go_when_reported)
    reporting.start()
    list(islice(collector, 10))
    reporting.join()
    wait_until(lambda: all(status.in_step_s < 1.0 for status in collector.stats().workers.values()))
    assert caplog.text.count("environment step") == 1


def test_a_silent_worker_is_reported_and_a_round_continues_without_it(
    connect: Connect, caplog: pytest.LogCaptureFixture, server: Server
) -> None:
    job, silent = server.own(**ASYNC | SUSPECT | {"mode": "Sync", "workers": 2}), server.link(Role.WORKER)
    server.start_worker(job, 0)
    server.start_worker(job, 1, link=silent)
    collector = connect()
    while next(collector).shape[0] != 2:
        pass
    silent.close()  # without a farewell
    while next(collector).shape[0] != 1:
        pass
    assert "default/test: worker 1 has sent no heartbeat for 3 s" in caplog.text


@pytest.mark.parametrize(
    ("spec", "waited_s"),
    [
        (ASYNC, lambda stats: stats.waited_for_space_s),
        (ASYNC | {"mode": "Sync"}, lambda stats: stats.workers[0].waited_for_round_s),
    ],
    ids=["space", "the next round"],
)
def test_the_workers_wait_for_the_learner_is_counted(
    spec: dict[str, Any], waited_s: Callable[[Stats], float], server: Server, connect: Connect
) -> None:
    worker = server.start_worker(server.own(**spec), 0)
    collector = connect()
    next(collector)
    worker.wait_for(WorkerState.WAITING_FOR_LEARNER)
    wait_until(lambda: next(collector) is not None and waited_s(collector.stats()) > 0)
    assert collector.stats().waited_for_weights_s == 0


def test_the_workers_wait_for_weights_is_counted(server: Server, connect: Connect) -> None:
    worker = server.start_worker(server.own(**ASYNC | {"policy": {"mlp": {}}}), 0)
    collector = connect()
    collector.set_seed(1)  # sends control, and no weights
    worker.wait_for(WorkerState.WAITING_FOR_WEIGHTS)
    collector.update_policy_weights_(actor_critic())
    wait_until(lambda: next(collector) is not None and collector.stats().waited_for_weights_s > 0)


@pytest.mark.parametrize("last", [None, WorkerState.COLLECTING], ids=["none is there", "it was killed as it collected"])
def test_a_wait_in_which_no_worker_collects_is_told(
    last: WorkerState | None,
    server: Server,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "TOLD_S", 1.0)
    job, killed = server.own(**ASYNC | SUSPECT), server.link(Role.WORKER)
    collector = connect()
    if last is not None:
        heartbeat = WorkerStatus(worker=0, incarnation=0, process=7, state=last)
        killed.call(killed.publish(killed.subjects.worker(0), pack(heartbeat)))
        wait_until(lambda: collector.stats().workers)

    def start_when_told() -> None:
        try:
            wait_until(lambda: "no worker collects: none is there; `rollfleet describe default/test`" in caplog.text)
        finally:
            server.start_worker(job, 0)

    starting = threading.Thread(target=start_when_told)
    starting.start()
    next(collector)
    starting.join()
    told = caplog.text.count("no worker collects")
    list(islice(collector, 10))
    assert caplog.text.count("no worker collects") == told
    collector.shutdown()
