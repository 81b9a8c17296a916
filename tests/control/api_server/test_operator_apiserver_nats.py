"""On a real API server: when jobs are published on NATS, and what the operator does without NATS."""

from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.control.kubernetes import wait_for

from rollfleet_api.job import KIND, CollectorJob
from rollfleet_api.messages import LearnerPhase
from rollfleet_api.permissions import Role
from rollfleet_operator import names, reconcile

pytestmark = pytest.mark.cluster


@pytest.fixture
def running(lab: Lab) -> Lab:
    lab.apply()
    lab.run()
    wait_for(lambda: lab.key in lab.nats.published)
    lab.wait_condition("Progressing", "Starting")
    return lab


def test_job_suspended_from_its_start_is_not_on_nats_until_it_is_resumed(lab: Lab) -> None:
    lab.apply(suspend=True)
    lab.wait_condition("Suspended", "Suspended")
    assert lab.key not in lab.nats.published
    assert lab.condition("Degraded")["status"] == "False"
    there: list[Any] = []

    async def look(_: CollectorJob) -> None:
        there.append(await lab.api.list("Job", lab.namespace))

    with lab.on_publish(look):
        lab.apply(suspend=False)
        lab.run()
    assert there == [[]], "NATS knows the job before its workers start"


def test_edits_of_a_suspended_job_are_published_when_it_is_resumed(running: Lab) -> None:
    running.apply(suspend=True)
    wait_for(lambda: not running.runs())
    running.apply(suspend=True, workers=5)
    running.apply(suspend=False, workers=5)
    assert running.run()["spec"]["parallelism"] == 5
    assert running.nats.published[running.key].spec.workers == 5, "NATS knows it before its workers start"


def test_complete_job_is_on_nats_until_its_pods_have_left(lab: Lab) -> None:
    lab.apply(learner={"template": {}})
    pod = lab.pod(phase="Running")["metadata"]["name"]
    lab.learner_says(LearnerPhase.COMPLETE, frames=64)
    wait_for(lambda: lab.status().get("frames") == 64)
    lab.end_run("Complete", role="learner")
    lab.wait_condition("Complete", "LearnerDone")
    lab.seconds_pass(0.5)
    assert lab.key in lab.nats.published, "its workers have to hear of it"
    lab.patch("Pod", pod, {"status": {"phase": "Succeeded"}}, "status")
    wait_for(lambda: lab.key not in lab.nats.published)
    lab.patch(KIND, "cartpole", {"metadata": {"labels": {"seen": "again"}}})
    lab.seconds_pass(0.5)
    assert lab.key not in lab.nats.published
    assert (lab.status()["frames"], lab.condition("Degraded")["status"]) == (64, "False")


def test_complete_job_stays_on_nats_for_a_learner_elsewhere(running: Lab) -> None:
    running.learner_says(LearnerPhase.COMPLETE)
    running.wait_condition("Complete", "LearnerDone")
    running.seconds_pass(0.7)
    assert running.key in running.nats.published


def test_job_is_published_at_once_on_a_nats_that_comes_back_empty(running: Lab) -> None:
    with running.nats_away():
        del running.nats.published[running.key]
        running.wait_condition("Degraded", "NatsUnavailable")
    wait_for(lambda: running.key in running.nats.published)
    running.wait_condition("Degraded", "AsExpected", "False")


def test_nats_that_is_away_is_retried_for_a_running_job(running: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers and learner give a job up whose streams are gone for a minute; the queue's own delays grow as long.
    monkeypatch.setattr(reconcile, "AWAY_S", 0.2)
    tried, check = [], running.nats.check

    def counted() -> None:
        tried.append(running.nats.away)
        check()

    monkeypatch.setattr(running.nats, "check", counted)
    with running.nats_away():
        wait_for(lambda: tried.count(True) > 15)
    running.wait_condition("Degraded", "AsExpected", "False")


def test_without_nats_drift_is_repaired_and_a_job_is_suspended(running: Lab) -> None:
    policy = names.network_policy("cartpole", Role.WORKER)
    with running.nats_away():
        running.wait_condition("Degraded", "NatsUnavailable")
        running.delete("NetworkPolicy", policy)
        wait_for(lambda: running.get("NetworkPolicy", policy))
        running.apply(suspend=True)
        wait_for(lambda: not running.runs())


def test_edit_is_published_to_the_learner_that_runs_and_only_another_program_makes_another_pod(lab: Lab) -> None:
    def program(command: str) -> dict[str, Any]:
        return {"template": {"spec": {"containers": [{"name": "learner", "command": ["python", command]}]}}}

    lab.apply(learner=program("a.py"))
    before = lab.run("learner")["metadata"]["uid"]
    lab.apply(learner=program("a.py"), collect={"totalFrames": 4096}, weights={"interval": 8})
    wait_for(lambda: lab.nats.published[lab.key].spec.weights.interval == 8)
    assert lab.nats.published[lab.key].spec.collect.total_frames == 4096
    lab.apply(learner=program("a.py"), collect={"totalFrames": 4096}, weights={"interval": 8}, workers=3)
    wait_for(lambda: lab.run()["spec"]["parallelism"] == 3)
    assert lab.run("learner")["metadata"]["uid"] == before
    lab.apply(learner=program("b.py"))
    wait_for(lambda: lab.run("learner")["metadata"]["uid"] != before)
