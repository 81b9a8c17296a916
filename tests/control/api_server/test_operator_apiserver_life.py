"""On a real API server: a job's life from its first worker to its end."""

from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.waiting import wait_until

from rollfleet_api.job import KIND, CollectorJob
from rollfleet_api.messages import LearnerPhase, LearnerStatus, Progress, WorkerStatus
from rollfleet_api.state.processes import Heartbeats

pytestmark = pytest.mark.cluster


def crash(code: int, log: str) -> dict[str, Any]:
    ended = {"exitCode": code, "reason": "Error", "message": log, "finishedAt": "2026-11-21T00:00:00Z"}
    status = {"name": "worker", "state": {"terminated": ended}, "ready": False, "restartCount": 0}
    return {"phase": "Failed", "containerStatuses": [{**status, "image": "worker:1", "imageID": ""}]}


def test_kubectl_scale_leaves_running_workers_alone_and_an_autoscaler_finds_them(lab: Lab) -> None:
    def template() -> Any:
        """All that a running pod could be replaced for: the run, its name with its revision, and the template."""
        run = lab.run()
        return run["metadata"]["uid"], run["metadata"]["name"], run["spec"]["template"]

    lab.apply(workers=2)
    before = template()
    for workers in (4, 1):
        lab.patch(KIND, "cartpole", {"spec": {"replicas": workers}}, "scale")
        wait_until(lambda workers=workers: lab.run()["spec"]["parallelism"] == workers)  # type: ignore[misc]
        wait_until(lambda workers=workers: lab.nats.published[lab.key].spec.workers == workers)  # type: ignore[misc]
        assert template() == before
    wait_until(lambda: lab.status().get("selector"))
    found = lab.read(KIND, "cartpole", "scale")
    assert found["spec"]["replicas"] == 1
    labels = lab.run()["spec"]["template"]["metadata"]["labels"]
    assert dict(pair.split("=") for pair in found["status"]["selector"].split(",")).items() <= labels.items()


def test_edit_wins_over_a_decision_of_the_autoscaler(lab: Lab) -> None:
    edits: list[str] = []

    async def edit(job: CollectorJob) -> None:
        if not edits:
            await lab.api.patch(KIND, lab.namespace, job.metadata.name, {"spec": {"autoscale": None}})
            edits.append(job.metadata.name)

    with lab.on_publish(edit):
        lab.apply(workers=1, autoscale={"minWorkers": 2, "maxWorkers": 3})
        wait_until(lambda: edits)
        lab.seconds_pass(0.5)
    job: Any = lab.get(KIND, "cartpole")
    assert job["spec"]["workers"] == 1


def test_failed_job_is_deleted_after_its_time_although_its_source_and_nats_are_gone(lab: Lab) -> None:
    lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": ""}})
    lab.apply(source={"configMap": "code"}, ttlSecondsAfterFinished=1)
    lab.run()
    with lab.nats_away():
        lab.delete("ConfigMap", "code")
        lab.end_run("Failed")
        wait_until(lambda: lab.get(KIND, "cartpole") is None)


def test_failed_job_reports_why_stops_and_is_fixed_by_an_edit(lab: Lab) -> None:
    lab.apply(learner={"template": {}})
    failed = lab.run()
    lab.pod(1, **crash(2, "ValueError: no such level"))
    assert "ValueError: no such level" in lab.wait_condition("Degraded", "WorkerCrashed")["message"]
    lab.end_run("Failed", reason="MaxFailedIndexesExceeded")
    message = lab.wait_condition("Failed", "WorkerFailed")["message"]
    assert message == "worker 1 ended with code 2: ValueError: no such level"
    wait_until(lambda: lab.run("learner")["spec"]["suspend"] is True)
    assert lab.run()["metadata"]["uid"] == failed["metadata"]["uid"]
    lab.apply(learner={"template": {}}, workers=1)
    lab.wait_condition("Failed", "NotEnded", "False")
    wait_until(lambda: lab.runs() and lab.run()["metadata"]["uid"] != failed["metadata"]["uid"])
    wait_until(lambda: lab.run("learner")["spec"].get("suspend") is False)


def test_workers_that_a_learner_let_go_before_it_died_start_again_for_the_next_one(lab: Lab) -> None:
    lab.apply(learner={"template": {}})
    before = lab.run()["metadata"]["uid"]
    workers = {0: WorkerStatus(worker=0, incarnation=0, follows=Progress(session=1, complete=True))}
    lab.nats.beats[lab.key] = Heartbeats(workers=workers, learner=LearnerStatus(session=1, phase=LearnerPhase.COMPLETE))
    lab.end_run("Complete")
    lab.seconds_pass(0.5)
    assert lab.run()["metadata"]["uid"] == before
    lab.nats.beats[lab.key] = Heartbeats(workers=workers, learner=LearnerStatus(session=2, phase=LearnerPhase.RUN))
    wait_until(lambda: lab.runs() and lab.run()["metadata"]["uid"] != before)


def test_runs_go_with_their_namespace_whose_pods_wait_for_that(lab: Lab) -> None:
    lab.apply(learner={"template": {}})
    lab.run("learner")
    pod = lab.pod(0, **crash(143, ""))["metadata"]["name"]
    lab.patch("Pod", pod, {"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}})
    lab.delete("Namespace", lab.namespace)
    lab.seconds_pass(0.5)
    assert lab.runs()  # as long as no pod is deleted
    lab.delete("Pod", pod)
    wait_until(lambda: not lab.runs() and not lab.runs("learner"))
