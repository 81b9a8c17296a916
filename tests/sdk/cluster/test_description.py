"""The text of `rollfleet describe`."""

from typing import Any

from tests.sdk.cluster.objects import NOW, RUNNING, condition, crash, event, job, pod, text, waiting

from rollfleet.cli.top import overview
from rollfleet.cluster.description import Description, newest_pods, workers_table
from rollfleet_api.diagnosis import ADVICE, stale
from rollfleet_api.views import JobSpecView


def test_a_description_begins_with_the_reason_and_advice() -> None:
    degraded = condition("Degraded", reason="ImagePullFailed", message="worker 1 has no image: not found")
    pods = (pod(0, phase="Running"), waiting(1, "ErrImagePull", "not found"))
    events = (event("Early", "sooner", age_s=50), event("Late", "later", age_s=5))
    changed = job(generation=2, **{**RUNNING, "conditions": [degraded]})
    described = Description(job=changed, pods=pods, events=events, time=NOW)
    lines = text(described)
    assert str(described).splitlines() == lines
    assert lines[:4] == [
        "lab/cartpole is Running (ImagePullFailed)",
        "worker 1 has no image: not found",
        ADVICE["ImagePullFailed"],
        stale(changed),
    ]
    shown = "\n".join(lines)
    assert "1 of 2 ready" in shown
    assert "12,800/100,000" in shown
    assert shown.index("Workers") < shown.index("Pods that are not running") < shown.index("Conditions")
    assert shown.index("Conditions") < shown.index("sooner") < shown.index("later")
    assert "ErrImagePull" in shown
    assert len([line for line in lines if "node-1" in line]) == 1  # the running pod is not listed


def test_each_worker_is_shown_by_its_newest_pod_and_its_number_of_crashes() -> None:
    pods = [
        crash(1, 1, "Traceback\nImportError: no module\n", age_s=300),
        crash(1, 137, "", age_s=200),
        pod(1, phase="Running"),
        pod(None, phase="Running"),
        pod(0, role="evaluation", phase="Running"),
        pod(1, role="env-server", phase="Running"),
        pod(0, phase="Running", age_s=7300),
    ]
    rows = [line.split() for line in text(workers_table(newest_pods(pods), pods, NOW))[1:]]
    assert rows == [
        ["0", "Running", "node-1", "0", "2h"],
        ["1", "Running", "node-1", "2", "60s"],
        ["environment", "server", "1", "Running", "node-1", "0", "60s"],
        ["evaluation", "worker", "0", "Running", "node-1", "0", "60s"],
        ["learner", "Running", "node-1", "0", "60s"],
    ]


def test_return_evaluation_waits_and_what_restarts_the_learner_are_shown() -> None:
    evaluation = {"version": 40, "meanReturn": -101.5, "episodes": 10}
    waits = {"learnerSeconds": 5, "workersForLearnerSeconds": 240, "workersForWeightsSeconds": 0}
    failed = {"app.Crash": 3, "TimeoutError": 1}
    statistics = {"success": {"mean": 0.625, "min": 0, "max": 1, "count": 8}}
    newest = "worker 1, environment 3: app.Crash, 3 times in the hour before 2026-01-01T00:00:00Z; the last one: down"
    about: Any = {
        "newestFailure": newest,
        "waits": waits,
        "evaluation": evaluation,
        "episodeStatistics": statistics,
        "failedEpisodes": failed,
        "servers": {"desired": 8, "ready": 7},
        "bottleneck": "The workers are the bottleneck.",
    }
    running = job(**RUNNING, meanReturn=-142.5, episodes=1200, **about)
    with_learner = running.model_copy(update={"spec": running.spec.model_copy(update={"learner": {}})})
    shown = "\n".join(text(Description(job=with_learner, pods=(), events=(), time=NOW)))
    assert "-142.5, 1,200 episodes" in shown
    top = "\n".join(text(overview([running], [], NOW)))
    assert all("success 0.625 0 1 8" in " ".join(each.split()) for each in (shown, top))
    assert "-101.5 at version 40" in shown
    assert "7 of 8 ready" in shown
    assert "Bottleneck        The workers are the bottleneck." in shown
    assert "3 by app.Crash, 1 by TimeoutError" in shown
    assert f"{newest}; the worker's log has the traceback of the first one" in shown
    assert "learner 5s for data; workers 4m for the learner, 0s for weights" in shown
    assert "starts again at an edit of learner, image" in shown
    server = pod(0, role="nats", phase="Pending", node="node-2")
    assert "Pending on node-2" in "\n".join(text(Description(job=running, pods=(server,), events=(), time=NOW)))
    assert "starts again" not in "\n".join(text(Description(job=running, pods=(), events=(), time=NOW)))


def test_workers_with_more_processes_than_cpus_are_explained() -> None:
    def shown(spec: dict[str, Any], machine_cpus: int | None = None) -> str:
        crowded = job(**RUNNING)
        crowded = crowded.model_copy(update={"spec": JobSpecView.model_validate({"workers": 2, **spec})})
        described = Description(job=crowded, pods=(), events=(), time=NOW, machine_cpus=machine_cpus)
        return next((line for line in text(described) if line.startswith("CPUs")), "")

    env = {"env": {"id": "CartPole-v1", "numEnvs": 64, "vectorization": "Async"}}
    cpu = {"resources": {"requests": {"cpu": 4}, "limits": {"cpu": "2500m"}}}
    assert "64 processes of environments share 2.5 CPUs in each worker; light" in shown(env | cpu)
    assert "`env.processes: 3`" in shown(env | cpu)
    assert "share 1 CPU in" in shown(env | cpu, machine_cpus=2)
    assert "fewer `env.numEnvs`" in shown(env | cpu | {"failure": {"environments": {}}})
    fits = {"env": env["env"] | {"processes": 3}}
    served = {"env": env["env"] | {"servers": {"replicas": 4}}}
    assert [shown(env), shown(fits | cpu), shown(served | cpu), shown(cpu)] == [""] * 4
