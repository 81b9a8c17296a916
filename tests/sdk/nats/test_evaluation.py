"""Evaluation workers over a real NATS: which versions they get, and what becomes of their results."""

from dataclasses import replace
from typing import Any

import torch
from tests.job_server import Connect, Server, actor_critic
from tests.waiting import wait_until

import rollfleet
from rollfleet import Collector
from rollfleet_api.messages import LearnerStatus
from rollfleet_api.versions import count_of

SPEC: dict[str, Any] = {"env": {"id": "CartPole-v1", "numEnvs": 2}, "evaluation": {"every": 3, "episodes": 2}}


def send(collector: Collector, version: int, **weights: Any) -> None:
    """Send weights until they have this version."""
    while collector.version < version:
        collector.update_policy_weights_(**weights)


def versions(collector: Collector) -> list[int]:
    return [each.version for each in collector.evaluations]


def test_multiples_are_evaluated_however_fast_later_versions_follow(server: Server, connect: Connect) -> None:
    server.start_worker(server.own(**SPEC), 0, evaluates=True)
    collector, controls = connect(actor_critic()), server.hear_control()
    while collector.version < 8:
        collector.update_policy_weights_()
        # Else the next version may overtake this one on its way.
        wait_until(lambda: controls and count_of(controls[-1].version) == collector.version)
    wait_until(lambda: versions(collector)[-1:] == [6])


def test_evaluation_workers_take_turns(server: Server, connect: Connect) -> None:
    job = server.own(**SPEC | {"evaluation": {"every": 2, "workers": 2, "episodes": 2}})
    of_two, _ = (server.start_worker(job, index, evaluates=True) for index in range(2))
    collector = connect(actor_critic())
    while collector.version < 8:
        collector.update_policy_weights_()
        if not collector.version % 2:
            wait_until(lambda: collector.version in versions(collector))
        if collector.version == 4:
            of_two.leave()
            of_two.join()
            break
    for last in (6, 10):  # the other one's, and no one evaluates version 8
        send(collector, last)
        wait_until(lambda: collector.version in versions(collector))
    assert versions(collector) == [2, 4, 6, 10]


def test_an_evaluation_worker_that_joins_late_evaluates_the_stored_version_as_it_is_evaluated_here(
    server: Server, connect: Connect
) -> None:
    job, policy = server.own(**SPEC), actor_critic()
    collector = connect(policy)
    send(collector, 3)
    server.start_worker(job, 0, evaluates=True)
    wait_until(lambda: versions(collector) == [3])
    expected = rollfleet.evaluate(policy, "CartPole-v1", SPEC["evaluation"]["episodes"], num_envs=2)
    assert replace(collector.evaluations[0], time_s=0.0) == replace(expected, version=3, time_s=0.0)


def test_a_learner_that_runs_gets_results_of_an_evaluation_that_is_added(server: Server, connect: Connect) -> None:
    server.own(env=SPEC["env"])
    collector = connect(actor_critic())
    edited = server.own(**SPEC)
    wait_until(lambda: collector.job.spec.evaluation)
    server.start_worker(edited, 0, evaluates=True)
    send(collector, 3)
    wait_until(lambda: versions(collector) == [3])


def test_the_end_of_the_job_ends_evaluation(server: Server, connect: Connect) -> None:
    thread = server.start_worker(
        server.own(**SPEC | {"evaluation": {"every": 1, "episodes": 1_000_000}}), 0, evaluates=True
    )
    collector = connect(actor_critic())
    collector.update_policy_weights_()  # its evaluation would take hours
    collector.shutdown()
    thread.join()
    assert thread.error is None


def test_a_cut_connection_loses_no_later_version(server: Server, connect: Connect) -> None:
    server.start_worker(server.own(**SPEC), 0, evaluates=True)
    collector = connect(actor_critic())
    send(collector, 3)
    wait_until(lambda: versions(collector) == [3])
    server.restart()
    send(collector, 6)
    wait_until(lambda: versions(collector) == [3, 6], 60)


def test_weights_that_do_not_fit_are_named(server: Server, connect: Connect) -> None:
    thread = server.start_worker(server.own(**SPEC), 0, evaluates=True)
    collector = connect(None)
    send(collector, 3, weights={"odd": torch.zeros(3)})
    thread.join()
    assert "odd" in str(thread.error)


def test_a_learners_heartbeat_and_its_successor_have_the_newest_evaluation(server: Server, connect: Connect) -> None:
    server.start_worker(server.own(**SPEC), 0, evaluates=True)
    collector, heard = connect(actor_critic()), server.hear(server.subjects.learner(0), LearnerStatus)
    send(collector, 3)
    wait_until(lambda: versions(collector) == [3])
    wait_until(lambda: heard and heard[-1].evaluation == collector.evaluations[-1])
    collector.detach()
    following = connect(actor_critic())
    wait_until(lambda: versions(following) == [3])
