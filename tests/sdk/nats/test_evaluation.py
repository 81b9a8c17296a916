"""Evaluation workers over a real NATS: which versions they get, and what becomes of their results."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from tests.job_server import Connect, Server, actor_critic
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet.nats.state import read_state
from rollfleet.nats.streams import provision
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.transports.workload import Workload
from rollfleet.worker.evaluation import EvaluationWorker
from rollfleet_api.job import CollectorJob, EvaluationSpec
from rollfleet_api.messages import LearnerStatus
from rollfleet_api.permissions import Role

SPEC: dict[str, Any] = {"env": {"id": "CartPole-v1", "numEnvs": 2}, "evaluation": {"every": 3, "episodes": 2}}


class EvaluationThread:
    """An evaluation worker in a thread: the program's loop.

    Attributes:
        error: The error that ended it; None: it ended without one, or still runs.
    """

    def __init__(self, server: Server, job: CollectorJob, index: int) -> None:
        assert job.spec.evaluation is not None
        self.error: BaseException | None = None
        transport = NatsWorkerTransport(server.link(Role.WORKER), index, job.spec.evaluation)
        self._worker = EvaluationWorker(transport, Workload.of(job), index)
        self._thread = threading.Thread(target=self._run, args=(transport,), daemon=True)
        self._thread.start()

    def _run(self, transport: NatsWorkerTransport) -> None:
        try:
            self._worker.run()
        except BaseException as error:
            self.error = error
        finally:
            self._worker.close()
            transport.close()

    def leave(self) -> None:
        self._worker.leave()
        self.join()

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the evaluation worker did not leave"


@pytest.fixture
def evaluate(server: Server) -> "Iterator[Any]":
    with ExitStack() as stack:

        def start(job: CollectorJob, index: int = 0) -> EvaluationThread:
            thread = EvaluationThread(server, job, index)
            stack.callback(thread.leave)
            return thread

        yield start


def send(collector: Collector, version: int, **weights: Any) -> None:
    """Send weights until they have this version."""
    while collector.version < version:
        collector.update_policy_weights_(**weights)


def versions(collector: Collector) -> list[int]:
    return [each.version for each in collector.evaluations]


def test_multiples_are_evaluated_however_fast_later_versions_follow(
    server: Server, connect: Connect, evaluate: Any
) -> None:
    evaluate(server.provision(**SPEC))
    collector = connect(actor_critic())
    while collector.version < 8:
        collector.update_policy_weights_()
        transport: Any = collector._transport
        transport._sender.flush(timeout_s=5)  # else the next version may overtake this one on its way
    wait_until(lambda: versions(collector)[-1:] == [6])


def test_evaluation_workers_take_turns(server: Server, connect: Connect, evaluate: Any) -> None:
    job = server.provision(**SPEC | {"evaluation": {"every": 2, "workers": 2, "episodes": 2}})
    of_two, _ = evaluate(job, 0), evaluate(job, 1)
    collector = connect(actor_critic())
    while collector.version < 8:
        collector.update_policy_weights_()
        if not collector.version % 2:
            wait_until(lambda: collector.version in versions(collector))
        if collector.version == 4:
            of_two.leave()
            break
    for last in (6, 10):  # the other one's, and no one evaluates version 8
        send(collector, last)
        wait_until(lambda: collector.version in versions(collector))
    assert versions(collector) == [2, 4, 6, 10]


def test_an_evaluation_worker_that_joins_late_evaluates_the_stored_version(
    server: Server, connect: Connect, evaluate: Any
) -> None:
    job = server.provision(**SPEC)
    collector = connect(actor_critic())
    send(collector, 3)
    evaluate(job)
    wait_until(lambda: versions(collector) == [3])


def test_a_learner_that_runs_gets_results_of_an_evaluation_that_is_added(
    server: Server, connect: Connect, evaluate: Any
) -> None:
    job = server.provision(env=SPEC["env"])
    collector = connect(actor_critic())
    spec = job.spec.model_copy(update={"evaluation": EvaluationSpec(every=3, episodes=2)})
    edited = job.model_copy(update={"spec": spec})
    owner = server.link()
    owner.call(provision(owner, edited), timeout_s=10)
    wait_until(lambda: collector.job.spec.evaluation)
    evaluate(edited)
    send(collector, 3)
    wait_until(lambda: versions(collector) == [3])


def test_the_end_of_the_job_ends_evaluation(server: Server, connect: Connect, evaluate: Any) -> None:
    thread = evaluate(server.provision(**SPEC | {"evaluation": {"every": 1, "episodes": 1_000_000}}))
    collector = connect(actor_critic())
    collector.update_policy_weights_()  # its evaluation would take hours
    collector.shutdown()
    thread.join()
    assert thread.error is None


def test_a_cut_connection_loses_no_later_version(server: Server, connect: Connect, evaluate: Any) -> None:
    evaluate(server.provision(**SPEC))
    collector = connect(actor_critic())
    send(collector, 3)
    wait_until(lambda: versions(collector) == [3])
    server.kill()
    server.start_again()
    send(collector, 6)
    wait_until(lambda: versions(collector) == [3, 6], 60)


def test_weights_that_do_not_fit_are_named(server: Server, connect: Connect, evaluate: Any) -> None:
    thread = evaluate(server.provision(**SPEC))
    collector = connect(None)
    send(collector, 3, weights={"odd": torch.zeros(3)})
    thread.join()
    assert "odd" in str(thread.error)


def test_the_heartbeat_of_a_learner_and_the_next_learner_have_the_newest_evaluation(
    server: Server, connect: Connect, evaluate: Any
) -> None:
    evaluate(server.provision(**SPEC))
    collector, link = connect(actor_critic()), server.link()
    send(collector, 3)
    wait_until(lambda: versions(collector) == [3])

    def in_heartbeat() -> bool:
        status = link.call(read_state(link, link.subjects.learner, LearnerStatus))
        return status is not None and status.evaluation == collector.evaluations[-1]

    collector._gatherer.check_workers()  # its first heartbeat
    wait_until(in_heartbeat)
    collector.detach()
    following = connect(actor_critic())
    wait_until(lambda: versions(following) == [3])
