"""NATS keeps nothing: it returns empty, or the job's owner ends it, and the job continues, or ends clearly."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.job_server import Connect, Server, actor_critic, join_all
from tests.sdk.nats.numbered_batches import ASYNC, META, SYNC, fragment, values
from tests.waiting import wait_until

import rollfleet
from rollfleet.errors import JobEnded
from rollfleet.nats.transport import NatsTransport
from rollfleet.recording.recorder import Recorder
from rollfleet.testing.rig import run
from rollfleet_api.messages import LearnerPhase, WorkerState
from rollfleet_api.permissions import Role
from rollfleet_api.publication import published_bytes
from rollfleet_api.status import CollectorJobStatus
from rollfleet_api.subjects import Ask


def _is_over(recorder: Recorder, batches: int) -> bool:
    return recorder.counts().batches > batches


async def _release(semaphore: threading.Semaphore) -> None:
    semaphore.release()


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_job_and_its_recorder_continue_after_a_restart_of_nats(
    spec: dict[str, Any], server: Server, connect: Connect, tmp_path: Path
) -> None:
    workers = server.start_workers(**spec)
    recorder = rollfleet.record(server.subjects.key, tmp_path, address=server.url(Role.LEARNER), timeout_s=10)
    with recorder, connect(actor_critic()) as collector:
        for batch in islice(collector, 5):
            assert batch.shape[0] == 4 * (2 if spec is SYNC else 1)
        for _ in range(2):
            before, recorded = collector.version, recorder.counts().batches
            server.restart()
            for batch in islice(collector, 8):
                assert int(batch["collector", "policy_version"].min()) >= before - 8
            assert collector.version == before + 8
            wait_until(partial(_is_over, recorder, recorded))
        while collector.stats().missed:  # a batch that a loss has delayed counts until it comes
            next(collector)
        assert collector.stats().repeated == 0
    join_all(workers)
    for worker in workers:
        assert worker.transport.incarnation == 0


def test_a_learner_that_nobody_can_tell_where_the_job_is_waits_for_its_owner(server: Server) -> None:
    """After a suspension all pods are new, and the operator's connection may come later than that of the learner."""
    job = server.own(**SYNC)
    server.disown()
    asked, link = threading.Semaphore(0), server.link()
    link.call(link.on_ask(Ask.JOB, partial(_release, asked)), timeout_s=60)
    with ThreadPoolExecutor() as executor:
        connecting = executor.submit(server.learner_transport)
        for _ in range(2):  # once when it connects; again, for the first question was not answered
            assert asked.acquire(timeout=60)
        status = CollectorJobStatus(frames=640, published_version=5)
        known = published_bytes(job.model_copy(update={"status": status}), counts=True)
        link.call(link.publish(link.subjects.spec, known), timeout_s=60)
        resumed = connecting.result(60).resumed
    assert (resumed.frames, resumed.version) == (640, 5)


def test_batches_that_a_worker_keeps_outlast_nats_and_a_learner(server: Server, connect: Connect) -> None:
    server.own(**ASYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 2}})
    first, transport = connect(acknowledge="manual"), server.worker_transport(0)
    transport.send(fragment(0.0), META)
    assert values(first, 1) == [0.0]
    first.detach()
    server.restart()
    transport.send(fragment(1.0), META)
    successor = connect()
    assert sorted(values(successor, 2)) == [0.0, 1.0]
    assert (successor.stats().missed, successor.stats().repeated) == (0, 0)


@pytest.mark.parametrize("survivors", [0, 1])
def test_a_learner_numbers_workers_beyond_those_that_died_with_its_predecessor(
    survivors: int, server: Server, connect: Connect
) -> None:
    job = server.own(**ASYNC | {"workers": 2})
    workers = [server.start_worker(job, index) for index in range(2)]
    collector = connect(actor_critic())
    next(collector)
    for number in (1, 2):
        workers[1].transport.close()
        workers[1] = server.start_worker(job, 1)
        while workers[1].transport.incarnation < number:
            next(collector)
    frames = collector.frames
    collector.detach()
    for worker in workers[survivors:]:
        worker.transport.close()
    with connect(actor_critic()) as collector:
        assert collector.frames == frames
        latest = server.start_worker(job, 1)
        wait_until(lambda: latest.transport.incarnation == 3)


def test_a_learner_and_a_worker_that_join_continue_counting_where_the_others_are(
    server: Server, connect: Connect
) -> None:
    job = server.own(**SYNC)
    stays, leaves = (server.start_worker(job, index) for index in range(2))
    collector = connect(actor_critic())
    list(islice(collector, 3))
    collector.detach()
    leaves.transport.close()
    server.restart()
    joins = server.start_worker(job, 1)
    with connect(actor_critic()) as collector:
        assert (collector.version, collector.frames) == (3, 3 * 32)
        next(collector)
        assert collector.version == 4
        assert (stays.transport.incarnation, joins.transport.incarnation) == (0, 1)
    join_all([stays, joins])


def test_a_worker_that_is_started_again_has_the_next_number_and_its_predecessor_ends(
    server: Server, connect: Connect
) -> None:
    job = server.own(**ASYNC | {"workers": 1})
    first = server.start_worker(job, 0)
    with connect(actor_critic()) as collector:
        next(collector)
        second = server.start_worker(job, 0)
        first.join()
        assert "worker 0 was started again" in str(first.error)
        while collector.stats().workers[0].incarnation != 1:
            next(collector)
        next(collector)
    join_all([second])


def test_worker_and_learner_of_a_deleted_job_end(server: Server, connect: Connect) -> None:
    worker = server.start_worker(server.own(**ASYNC | {"workers": 1, "policy": {"random": {}}}), 0)
    collector = connect()
    next(collector)
    worker.wait_for(WorkerState.WAITING_FOR_LEARNER)
    server.delete()
    worker.join(20)
    assert isinstance(worker.error, JobEnded)
    assert worker.status is not None
    assert worker.status.state is WorkerState.LEFT
    with pytest.raises(JobEnded, match="default/test was deleted"):
        list(islice(collector, 10))


def test_the_learner_of_a_deleted_job_does_not_meet_its_namesake(server: Server, connect: Connect) -> None:
    job = server.own(**ASYNC | {"workers": 1})
    old, namesake = (
        job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid})}) for uid in ("old", "new")
    )
    server.own_job(old)
    before = connect(actor_critic())
    server.own_job(namesake)
    worker = server.start_worker(namesake, 0)
    with pytest.raises(JobEnded, match="was deleted, and another one has its name"):
        list(before)
    with connect(actor_critic()) as collector:
        next(collector)
        late = NatsTransport(server.link(Role.LEARNER), old)  # of a pod that has the old job's file
        with closing(late):
            with suppress(JobEnded):  # it may know already
                run(late, version=0, phase=LearnerPhase.COMPLETE)
            with pytest.raises(JobEnded, match="was deleted, and another one has its name"):
                late.receive(timeout_s=60)
            assert not late.workers()
        list(islice(collector, 5))
    join_all([worker])
