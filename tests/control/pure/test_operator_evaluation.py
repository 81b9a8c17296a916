"""The evaluation workers of a job: pods of their own, beside the workers, which never end the job."""

from dataclasses import replace
from typing import Any

import pytest
from tests.control.pure.scene import a_job, condition, scene, wanted

from rollfleet_api.kubernetes_names import ROLE_LABEL
from rollfleet_api.messages import Evaluation, LearnerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.state.status import status
from rollfleet_api.state.verdict import Stage
from rollfleet_api.status import EvaluationStatus
from rollfleet_operator.cache import Cache
from rollfleet_operator.manifest import Ref
from rollfleet_operator.metrics import Metrics
from rollfleet_operator.revision import evaluation_revision, workers_revision
from rollfleet_operator.work_queue import WorkQueue

EVALUATION: dict[str, Any] = {"every": 10, "workers": 3}
LEARNER = LearnerStatus(session=1, version=30)
OTHERS = dict.fromkeys(("min_return", "max_return", "std_return", "mean_length", "time_s"), 1.0)
RESULT = Evaluation(version=20, episodes=10, mean_return=123.456, **OTHERS)


def test_evaluation_workers_are_pods_like_the_workers_with_their_rights() -> None:
    spec = {"image": "a:1", "resources": {"limits": {"cpu": "2"}}, "template": {"spec": {"nodeSelector": {"a": "b"}}}}
    found = scene(evaluation=EVALUATION, **spec)
    run = found.run(Role.EVALUATION)["spec"]
    assert (run["completionMode"], run["completions"], run["parallelism"]) == ("Indexed", 3, 3)
    pod, worker = run["template"]["spec"], found.run(Role.WORKER)["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["rollfleet", "worker", "--evaluation"]
    assert "cartpole-worker-nats" in [volume.get("secret", {}).get("secretName") for volume in pod["volumes"]]
    assert (pod["nodeSelector"], pod["containers"][0]["resources"]) == (
        worker["nodeSelector"],
        worker["containers"][0]["resources"],
    )


def test_evaluation_workers_have_the_network_policy_of_the_workers() -> None:
    found = wanted(a_job(evaluation=EVALUATION))
    assert {ref.name for ref in found if ref.kind == "NetworkPolicy"} == {
        "cartpole-worker-rollfleet",
        "cartpole-learner-rollfleet",
        "cartpole-nats-rollfleet",
    }
    (expression,) = found[Ref("NetworkPolicy", "cartpole-worker-rollfleet")]["spec"]["podSelector"]["matchExpressions"]
    assert expression == {"key": ROLE_LABEL, "operator": "In", "values": ["worker", "evaluation"]}


def test_scaling_the_workers_leaves_the_evaluation_workers() -> None:
    before = scene(evaluation=EVALUATION)
    changed = [each.ref.name for each in before.edited(workers=9).planned()]
    assert changed == [before.run(Role.WORKER)["metadata"]["name"]]


def test_evaluation_workers_follow_an_edit_that_makes_new_workers() -> None:
    before, after = a_job(evaluation=EVALUATION), a_job(evaluation=EVALUATION, collect={"seed": 7})
    longer = a_job(evaluation=EVALUATION | {"episodes": 3})
    assert len({evaluation_revision(each) for each in (before, after, longer)}) == 3
    assert workers_revision(longer) == workers_revision(before)
    assert workers_revision(before) == workers_revision(a_job())


@pytest.mark.parametrize("end", ["fails", "crashes", "waits"])
def test_a_fault_of_an_evaluation_worker_degrades_the_job_and_does_not_end_it(end: str) -> None:
    found = scene(evaluation=EVALUATION, failure={"maxRestartsPerWorker": 0, "pendingDeadlineSeconds": 30})
    found = found.running(0, 1)
    if end == "waits":
        unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
        found = found.pod(2, role=Role.EVALUATION, phase="Pending", conditions=[unscheduled])
    else:
        found = found.crashed(2, code=2, log="ValueError: no such level", role=Role.EVALUATION)
    if end == "fails":
        found = found.ended("Failed", Role.EVALUATION, reason="FailedIndexes")
    assert found.verdict.stage is Stage.LIVE
    degraded = condition(status(found.snapshot), "Degraded")
    assert degraded.status == "True"
    assert degraded.message.startswith("evaluation worker 2 ")


def test_status_has_the_newest_evaluation_until_a_later_one_comes() -> None:
    found = scene(evaluation=EVALUATION)
    assert status(found.with_heartbeats(learner=LEARNER).snapshot).evaluation is None
    evaluated = found.with_heartbeats(learner=replace(LEARNER, evaluation=RESULT))
    expected = EvaluationStatus(version=20, mean_return=123.5, episodes=10)
    assert status(evaluated.snapshot).evaluation == expected
    silent = evaluated.later(10).with_heartbeats()
    assert status(silent.snapshot).evaluation == expected


def test_metrics_have_the_newest_evaluation() -> None:
    cache = Cache()
    for name, written in (("without", {}), ("evaluated", {"evaluation": {"version": 20, "meanReturn": 123.5}})):
        manifest: Any = a_job(name).dump()
        manifest["metadata"] |= {"namespace": "lab", "resourceVersion": "1"}
        cache.put(manifest | {"status": written})
    shown = Metrics(cache, WorkQueue()).exposition().decode().splitlines()
    assert [line for line in shown if line.startswith("rollfleet_job_evaluation")] == [
        'rollfleet_job_evaluation_mean_return{name="evaluated",namespace="lab"} 123.5',
        'rollfleet_job_evaluation_version{name="evaluated",namespace="lab"} 20.0',
    ]
