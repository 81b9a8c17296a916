"""On a real API server: when jobs are published on NATS, and what the operator does without NATS."""

from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.waiting import wait_until

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import names, reconcile

pytestmark = pytest.mark.cluster


@pytest.fixture
def running(lab: Lab) -> Lab:
    lab.apply()
    lab.run()
    wait_until(lambda: lab.key in lab.nats.published)
    lab.wait_condition("Progressing", "Starting")
    return lab


@pytest.mark.parametrize(
    ("earlier", "known", "edit", "before"),
    [
        ([{"suspend": True}], None, {}, []),
        ([{}], 2, {"workers": 4}, [2]),
        ([{}, {"suspend": True}, {"suspend": True, "workers": 5}], 2, {"workers": 5}, []),
    ],
    ids=["suspended from its start", "scaled", "edited while it was suspended"],
)
def test_nats_knows_a_job_before_its_workers_start(
    lab: Lab, earlier: list[Any], known: int | None, edit: Any, before: list[int]
) -> None:
    for spec in earlier:
        generation = lab.apply(**spec)["metadata"]["generation"]
        wait_until(lambda generation=generation: lab.status().get("observedGeneration") == generation)  # type: ignore[misc]
    published = lab.nats.published.get(lab.key)
    assert (published and published.spec.workers) == known
    assert lab.condition("Degraded")["status"] == "False"
    seen: list[Any] = []

    async def look(job: CollectorJob) -> None:
        runs = await lab.api.list("Job", lab.namespace)
        seen.append((job.spec.workers, [run["spec"]["parallelism"] for run in runs]))

    with lab.on_publish(look):
        workers = lab.apply(**edit)["spec"]["workers"]
        wait_until(lambda: seen and lab.run()["spec"]["parallelism"] == workers)
    assert seen == [(workers, before)]


def test_nats_that_is_away_is_retried_and_knows_the_job_at_once_if_it_comes_back_empty(
    running: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers and learner give a job up whose streams are gone for a minute; the queue's own delays grow as long.
    monkeypatch.setattr(reconcile, "AWAY_S", 0.2)
    tried, check = [], running.nats.check

    def counted() -> None:
        tried.append(running.nats.away)
        check()

    monkeypatch.setattr(running.nats, "check", counted)
    with running.nats_away():
        del running.nats.published[running.key]
        running.wait_condition("Degraded", "NatsUnavailable")
        wait_until(lambda: tried.count(True) > 15)
    wait_until(lambda: running.key in running.nats.published)
    running.wait_condition("Degraded", "AsExpected", "False")


def test_without_nats_drift_is_repaired_and_a_job_is_scaled_down_and_suspended(running: Lab) -> None:
    policy = names.network_policy("cartpole", Role.WORKER)
    with running.nats_away():
        running.wait_condition("Degraded", "NatsUnavailable")
        running.delete("NetworkPolicy", policy)
        wait_until(lambda: running.get("NetworkPolicy", policy))
        running.apply(workers=1)
        wait_until(lambda: running.run()["spec"]["parallelism"] == 1)
        running.apply(suspend=True)
        wait_until(lambda: not running.runs())
