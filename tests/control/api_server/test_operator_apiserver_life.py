"""On a real API server: a job's life from its first worker to its end."""

from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.control.kubernetes import wait_for

from rollfleet_api.job import KIND
from rollfleet_api.kubernetes_names import ROLE_LABEL
from rollfleet_api.messages import LearnerPhase
from rollfleet_api.permissions import Role

pytestmark = pytest.mark.cluster
EVALUATION: dict[str, Any] = {"every": 10, "workers": 3}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "worker", "state": {"running": {}}}]}


def crash(code: int, log: str) -> dict[str, Any]:
    ended = {"exitCode": code, "reason": "Error", "message": log, "finishedAt": "2026-11-21T00:00:00Z"}
    status = {"name": "worker", "state": {"terminated": ended}, "ready": False, "restartCount": 0}
    return {"phase": "Failed", "containerStatuses": [{**status, "image": "worker:1", "imageID": ""}]}


def pods(run: dict[str, Any]) -> int:
    assert run["spec"]["completions"] == run["spec"]["parallelism"]
    return int(run["spec"]["parallelism"])


def test_scale_subresource_has_what_an_autoscaler_needs(lab: Lab) -> None:
    lab.apply(workers=2)
    wait_for(lambda: lab.status().get("selector"))
    scale: Any = lab.read(KIND, "cartpole", "scale")
    assert scale["spec"]["replicas"] == 2
    labels = lab.run()["spec"]["template"]["metadata"]["labels"]
    assert dict(pair.split("=") for pair in scale["status"]["selector"].split(",")).items() <= labels.items()


def test_more_workers_are_published_before_they_start(lab: Lab) -> None:
    lab.apply(workers=2)
    wait_for(lambda: lab.key in lab.nats.published)
    lab.run()
    seen: list[tuple[int, int]] = []
    with lab.on_publish(lambda job, runs: seen.append((job.spec.workers, pods(runs[0])))):
        lab.apply(workers=4)
        wait_for(lambda: seen and pods(lab.run()) == 4)
    assert seen == [(4, 2)]


@pytest.mark.parametrize("queue", [{}, {"kueue.x-k8s.io/queue-name": "gpus"}])
def test_suspended_job_has_no_runs_and_a_resumed_one_has_new_ones(lab: Lab, queue: dict[str, str]) -> None:
    lab.apply(labels=queue)
    before = lab.run()
    lab.apply(labels=queue, suspend=True)
    lab.wait_condition("Suspended", "Suspended")
    wait_for(lambda: not lab.runs())
    lab.apply(labels=queue, suspend=False)
    lab.wait_condition("Suspended", "NotSuspended", "False")
    assert lab.run()["metadata"]["uid"] != before["metadata"]["uid"]


@pytest.mark.parametrize("queued", ["by the job", "by Kueue", "without a queue"])
def test_run_that_another_client_suspends_stays_so_and_is_scaled(lab: Lab, queued: str) -> None:
    queue = {"kueue.x-k8s.io/queue-name": "gpus"}
    ours, theirs = (queue if queued == "by the job" else {}), (queue if queued == "by Kueue" else {})
    lab.apply(labels=ours)
    name = lab.run()["metadata"]["name"]
    lab.patch("Job", name, {"metadata": {"labels": theirs}, "spec": {"suspend": True}})
    lab.wait_condition("Suspended", "Queued")
    lab.apply(labels=ours, workers=3)
    wait_for(lambda: pods(lab.run()) == 3)
    assert lab.run()["spec"]["suspend"] is True
    assert lab.run()["metadata"]["labels"].items() >= (ours | theirs).items()
    lab.patch("Job", name, {"spec": {"suspend": False}})  # Kueue admits it
    lab.wait_condition("Suspended", "NotSuspended", "False")
    lab.apply(labels=ours, suspend=True)
    wait_for(lambda: not lab.runs())
    lab.wait_condition("Suspended", "Suspended")


def test_edit_wins_over_a_decision_of_the_autoscaler(lab: Lab) -> None:
    with lab.edited_during_reconciliation({"spec": {"autoscale": None}}) as edited:
        lab.apply(workers=1, autoscale={"minWorkers": 2, "maxWorkers": 3})
        wait_for(edited.is_set)
        lab.seconds_pass(0.5)
    job: Any = lab.get(KIND, "cartpole")
    assert job["spec"]["workers"] == 1


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_job_is_deleted_after_its_time_whichever_way_it_ended(lab: Lab, end: str) -> None:
    lab.apply(ttlSecondsAfterFinished=1)
    lab.run()
    if end == "Complete":
        lab.learner_says(LearnerPhase.COMPLETE)
    lab.end_run(end)
    wait_for(lambda: lab.get(KIND, "cartpole") is None)
    wait_for(lambda: lab.key not in lab.nats.published)


def test_job_is_deleted_after_its_time_although_its_source_and_nats_are_gone(lab: Lab) -> None:
    lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": ""}})
    lab.apply(source={"configMap": "code"}, ttlSecondsAfterFinished=1)
    lab.run()
    with lab.nats_away():
        lab.delete("ConfigMap", "code")
        lab.end_run("Failed")
        wait_for(lambda: lab.get(KIND, "cartpole") is None)


def test_failed_job_reports_why_stops_and_is_fixed_by_an_edit(lab: Lab) -> None:
    lab.apply(learner={"template": {}})
    failed = lab.run()
    lab.pod(1, **crash(2, "ValueError: no such level"))
    assert "ValueError: no such level" in lab.wait_condition("Degraded", "WorkerCrashed")["message"]
    lab.end_run("Failed", reason="MaxFailedIndexesExceeded")
    message = lab.wait_condition("Failed", "WorkerFailed")["message"]
    assert message == "worker 1 ended with code 2: ValueError: no such level"
    wait_for(lambda: lab.run("learner")["spec"]["suspend"] is True)
    assert lab.run()["metadata"]["uid"] == failed["metadata"]["uid"]
    lab.apply(learner={"template": {}}, workers=1)
    lab.wait_condition("Failed", "NotEnded", "False")
    wait_for(lambda: lab.runs() and lab.run()["metadata"]["uid"] != failed["metadata"]["uid"])
    wait_for(lambda: lab.run("learner")["spec"].get("suspend") is False)


def evaluation_runs(lab: Lab) -> list[Any]:
    return [run for run in lab.all("Job") if run["metadata"]["labels"][ROLE_LABEL] == Role.EVALUATION]


def test_edits_of_evaluation_reach_its_workers_alone(lab: Lab) -> None:
    lab.apply()
    workers = lab.run()["metadata"]
    lab.apply(evaluation=EVALUATION)
    first = lab.run("evaluation")["metadata"]["uid"]
    lab.apply(evaluation=EVALUATION | {"episodes": 3})
    wait_for(lambda: [run for run in evaluation_runs(lab) if run["metadata"]["uid"] != first])
    wait_for(lambda: len(evaluation_runs(lab)) == 1)
    lab.apply()
    wait_for(lambda: not evaluation_runs(lab))
    assert lab.run()["metadata"]["uid"] == workers["uid"]
