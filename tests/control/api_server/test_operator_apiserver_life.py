"""On a real API server: a job's life from its first worker to its end."""

from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.control.kubernetes import wait_for

from rollfleet_api.job import KIND, CollectorJob
from rollfleet_api.messages import LearnerPhase

pytestmark = pytest.mark.cluster
EVALUATION: dict[str, Any] = {"every": 10, "workers": 3}
EXITED = {"name": "learner", "state": {"terminated": {"exitCode": 0}}, "ready": False, "restartCount": 0}
EXITED |= {"image": "worker:1", "imageID": ""}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "worker", "state": {"running": {}}}]}


def crash(code: int, log: str) -> dict[str, Any]:
    ended = {"exitCode": code, "reason": "Error", "message": log, "finishedAt": "2026-11-21T00:00:00Z"}
    status = {"name": "worker", "state": {"terminated": ended}, "ready": False, "restartCount": 0}
    return {"phase": "Failed", "containerStatuses": [{**status, "image": "worker:1", "imageID": ""}]}


def pods(run: dict[str, Any]) -> int:
    assert run["spec"]["completions"] == run["spec"]["parallelism"]
    return int(run["spec"]["parallelism"])


def test_more_workers_are_published_before_they_start(lab: Lab) -> None:
    lab.apply(workers=2)
    wait_for(lambda: lab.key in lab.nats.published)
    lab.run()
    seen: list[tuple[int, int]] = []

    async def look(job: CollectorJob) -> None:
        (run,) = await lab.api.list("Job", lab.namespace)
        seen.append((job.spec.workers, pods(run)))

    with lab.on_publish(look):
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


def test_edit_wins_over_a_decision_of_the_autoscaler(lab: Lab) -> None:
    edits: list[str] = []

    async def edit(job: CollectorJob) -> None:
        if not edits:
            await lab.api.patch(KIND, lab.namespace, job.metadata.name, {"spec": {"autoscale": None}})
            edits.append(job.metadata.name)

    with lab.on_publish(edit):
        lab.apply(workers=1, autoscale={"minWorkers": 2, "maxWorkers": 3})
        wait_for(lambda: edits)
        lab.seconds_pass(0.5)
    job: Any = lab.get(KIND, "cartpole")
    assert job["spec"]["workers"] == 1


def test_complete_job_is_deleted_after_its_time(lab: Lab) -> None:
    lab.apply(ttlSecondsAfterFinished=1)
    lab.run()
    lab.learner_says(LearnerPhase.COMPLETE)
    lab.end_run("Complete")
    wait_for(lambda: lab.get(KIND, "cartpole") is None)
    wait_for(lambda: lab.key not in lab.nats.published)


def test_failed_job_is_deleted_after_its_time_although_its_source_and_nats_are_gone(lab: Lab) -> None:
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


def test_runs_go_with_their_namespace_whose_pods_wait_for_that(lab: Lab) -> None:
    lab.apply(learner={"template": {}})
    lab.run("learner")
    pod = lab.pod(0, **crash(143, ""))["metadata"]["name"]
    lab.patch("Pod", pod, {"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}})
    lab.delete("Namespace", lab.namespace)
    lab.seconds_pass(0.5)
    assert lab.runs()  # as long as no pod is deleted
    lab.delete("Pod", pod)
    wait_for(lambda: not lab.runs() and not lab.runs("learner"))


def test_learner_whose_pod_was_removed_starts_again_and_one_that_exited_does_not(lab: Lab) -> None:
    lab.apply(learner={"template": {}})
    first = lab.run("learner")["metadata"]["uid"]
    lab.end_run("Complete", role="learner")  # its pod is gone
    wait_for(lambda: lab.runs("learner") and lab.run("learner")["metadata"]["uid"] != first)
    lab.pod(role="learner", phase="Succeeded", containerStatuses=[EXITED])
    lab.end_run("Complete", role="learner")
    assert lab.wait_condition("Complete", "LearnerExited")["message"] == "the learner exited with code 0 after 0 frames"


def test_edits_of_evaluation_reach_its_workers_alone(lab: Lab) -> None:
    lab.apply()
    workers = lab.run()["metadata"]
    lab.apply(evaluation=EVALUATION)
    first = lab.run("evaluation")["metadata"]["uid"]
    lab.apply(evaluation=EVALUATION | {"episodes": 3})
    wait_for(lambda: [run for run in lab.runs("evaluation") if run["metadata"]["uid"] != first])
    wait_for(lambda: len(lab.runs("evaluation")) == 1)
    lab.apply()
    wait_for(lambda: not lab.runs("evaluation"))
    assert lab.run()["metadata"]["uid"] == workers["uid"]
