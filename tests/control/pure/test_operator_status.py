"""What a job's status says."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from rollfleet_api.messages import LearnerStatus, WorkerState
from rollfleet_api.status import CollectorJobStatus, Condition, ConditionStatus, Phase
from rollfleet_operator.clock import format_time
from rollfleet_operator.problems import Problem
from rollfleet_operator.status import invalid, is_transition, ours, status

if TYPE_CHECKING:
    from tests.control.pure.scene import Scene

MakeScene = Callable[..., "Scene"]
NOW_S = 1_800_000_000.0  # in every scene
GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def told(scene: "Scene", problem: Problem | None = None) -> CollectorJobStatus:
    return status(scene.job, replace(scene.snapshot, problem=problem))


def condition(found: CollectorJobStatus, kind: str) -> Condition:
    return next(each for each in found.conditions if each.type == kind)


def says(found: CollectorJobStatus, kind: str) -> tuple[bool, str]:
    each = condition(found, kind)
    return each.status is ConditionStatus.TRUE, each.reason


def collecting(scene: "Scene", *indices: int) -> "Scene":
    return scene.running(*indices).heard(*(scene.beat(index) for index in indices))


def test_worker_is_ready_when_it_runs_and_reports(scene: MakeScene) -> None:
    assert told(scene().running(0, 1)).workers.ready == 0
    assert told(collecting(scene(), 0, 1)).workers.ready == 2
    assert says(told(collecting(scene(), 0, 1)), "Ready") == (True, "AllWorkersReady")


@pytest.mark.parametrize(
    "said",
    [{"state": WorkerState.STARTING}, {"state": WorkerState.FAILED}, {"time_s": NOW_S - 31}],
    ids=["starting", "failed", "silent"],
)
def test_worker_is_not_ready_that_says_so_or_nothing(scene: MakeScene, said: dict[str, Any]) -> None:
    found = scene().running(0, 1)
    found = found.heard(found.beat(0), found.beat(1, **said))
    assert told(found).workers.ready == 1
    assert condition(told(found), "Ready").message == "1 of 2 workers run and report"


def test_heartbeat_of_the_pod_before_does_not_make_the_new_one_ready(scene: MakeScene) -> None:
    found = scene().pod(0, age_s=0.0, phase="Running", containerStatuses=[{"name": "w", "state": {"running": {}}}])
    assert told(found.heard(found.beat(0))).workers.ready == 0


def test_worker_that_is_leaving_or_gone_counts_no_more(scene: MakeScene) -> None:
    found = scene(resources={"gpu": {"count": 1}}).running(0, 1).deleted()
    said = told(found.heard(found.beat(0), found.beat(1)))
    assert (said.workers.ready, said.gpus) == (1, 1)


def test_numbers_are_the_learners(scene: MakeScene) -> None:
    found = collecting(scene(), 0, 1)
    learner = LearnerStatus(
        session=1, version=7, applied_version=6, frames=640, batches=10, dropped=2, mean_return=1.0, lag=1, time_s=0.0
    )
    said = status(found.job, replace(found.heard(learner=learner).snapshot, frames_per_second=123.456))
    assert (said.frames, said.frames_per_second, said.published_version, said.applied_version) == (640, 123.5, 7, 6)
    assert (said.batches.delivered, said.batches.dropped) == (10, 2)


def test_numbers_are_kept_when_nothing_is_heard_any_more(scene: MakeScene) -> None:
    learner = LearnerStatus(
        session=1, version=7, applied_version=6, frames=640, batches=10, dropped=2, mean_return=1.0, lag=1, time_s=0.0
    )
    assert told(scene().heard(learner=learner).later(10).heard()).frames == 640


def test_gpus_are_those_that_were_given(scene: MakeScene) -> None:
    found = scene(resources={"gpu": {"count": 2}}).running(0).unplaced(1, why=GPU)
    assert told(found).gpus == 2


def test_selector_finds_the_workers(scene: MakeScene) -> None:
    labels = scene().run()["spec"]["template"]["metadata"]["labels"]
    wanted = dict(pair.split("=") for pair in str(told(scene()).selector).split(","))
    assert wanted.items() <= labels.items()


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (WorkerState.COLLECTING, "Collecting"),
        (WorkerState.WAITING_FOR_WEIGHTS, "WaitingForWeights"),
        (WorkerState.WAITING_FOR_LEARNER, "WaitingForLearner"),
    ],
)
def test_progress_tells_what_workers_do(scene: MakeScene, state: WorkerState, reason: str) -> None:
    found = scene().running(0)
    assert says(told(found.heard(found.beat(0, state=state))), "Progressing") == (True, reason)


def test_missing_gpu_is_named(scene: MakeScene) -> None:
    found = told(scene(resources={"gpu": {"count": 9}}).unplaced(0, why=GPU))
    assert says(found, "Degraded") == (True, "InsufficientDevices")
    assert condition(found, "Degraded").message == f"worker 0 waits for a node with 9 nvidia.com/gpu: {GPU}"


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("0/3 nodes are available: 3 Insufficient cpu, 2 Insufficient memory.", "InsufficientResources"),
        ("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.", "Unschedulable"),
    ],
)
def test_what_the_scheduler_says_becomes_the_reason(scene: MakeScene, why: str, reason: str) -> None:
    assert says(told(scene().unplaced(0, why=why)), "Degraded") == (True, reason)


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [("ImagePullBackOff", "ImagePullFailed"), ("CreateContainerConfigError", "ContainerRefused")],
)
def test_what_the_kubelet_says_becomes_the_reason(scene: MakeScene, waiting: str, reason: str) -> None:
    found = told(scene().waiting(0, reason=waiting, message="no such thing"))
    assert says(found, "Degraded") == (True, reason)
    assert "no such thing" in condition(found, "Degraded").message


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        ('pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1', "QuotaExceeded"),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', "PodSecurityViolation"),
        ('pods "x" is forbidden: error looking up service account', "Forbidden"),
    ],
)
def test_what_the_api_server_says_to_pods_becomes_the_reason(scene: MakeScene, refusal: str, reason: str) -> None:
    assert says(told(scene().refusing_pods(refusal)), "Degraded") == (True, reason)


def test_crash_is_told_with_the_last_line_of_the_log_until_the_worker_is_back(scene: MakeScene) -> None:
    found = scene().crashed(1, log="a\nRuntimeError: simulator lost\n\n")
    assert says(told(found), "Degraded") == (True, "WorkerCrashed")
    assert told(found).last_error == "worker 1 ended with code 1: RuntimeError: simulator lost"
    back = collecting(found, 0, 1)
    assert says(told(back), "Degraded") == (False, "AsExpected")
    assert told(back).last_error == "worker 1 ended with code 1: RuntimeError: simulator lost"


def test_what_stood_in_the_operators_way_is_told(scene: MakeScene) -> None:
    found = told(scene(), Problem("Forbidden", "the API server refuses: jobs.batch is forbidden"))
    assert says(found, "Degraded") == (True, "Forbidden")


def test_suspended_job_says_so_and_wants_no_workers(scene: MakeScene) -> None:
    found = told(collecting(scene(), 0, 1).edited(suspend=True))
    assert (found.phase, found.workers.desired, found.workers.ready) == (Phase.SUSPENDED, 0, 0)
    assert says(found, "Suspended") == (True, "Suspended")
    assert says(found, "Ready") == (False, "Suspended")
    assert says(found, "Progressing") == (False, "Suspended")


def test_job_in_kueues_queue_says_so(scene: MakeScene) -> None:
    found = scene(labels={"kueue.x-k8s.io/queue-name": "gpus"})
    found.run()["spec"]["suspend"] = True
    assert says(told(found), "Suspended") == (True, "Queued")
    assert says(told(found), "Progressing") == (False, "Queued")


def test_old_workers_that_are_leaving_count_no_more(scene: MakeScene) -> None:
    rolled = collecting(scene(image="a:1"), 0, 1).edited(image="a:2")
    assert told(rolled).workers.ready == 0
    assert says(told(rolled), "Progressing") == (True, "Rolling")


def test_end_has_a_time_that_stays(scene: MakeScene) -> None:
    failed = scene().crashed(code=2).ended("Failed")
    when = format_time(failed.now_s)
    assert (told(failed).phase, told(failed).completion_time) == (Phase.FAILED, when)
    assert told(failed.later(500)).completion_time == when


def test_transition_has_the_time_when_it_came(scene: MakeScene) -> None:
    early = scene()
    late = collecting(early.later(100), 0, 1)
    assert condition(told(late), "Ready").last_transition_time == format_time(late.now_s)
    assert condition(told(late), "Complete").last_transition_time == format_time(early.now_s)


def test_another_number_is_no_transition_and_another_condition_is(scene: MakeScene) -> None:
    found = told(collecting(scene(), 0, 1))
    assert not is_transition(found, found.model_copy(update={"frames": 5}))
    assert is_transition(None, found)
    assert is_transition(told(scene()), found)


def test_conditions_of_other_controllers_are_not_ours(scene: MakeScene) -> None:
    found = told(scene())
    theirs = Condition(type="Theirs", status=ConditionStatus.TRUE)
    assert ours(found.model_copy(update={"conditions": [theirs, *found.conditions]})) == found


def test_job_that_cannot_be_understood_says_so_once_and_keeps_its_numbers(scene: MakeScene) -> None:
    before = told(scene()).model_copy(update={"frames": 7})
    said = invalid(before.model_dump(mode="json", by_alias=True), 2, "spec.env: missing", NOW_S)
    assert said is not None
    assert says(said, "Degraded") == (True, "Invalid")
    assert condition(said, "Degraded").message == "spec.env: missing"
    assert (said.frames, said.observed_generation) == (7, 2)
    assert invalid(said.model_dump(mode="json", by_alias=True), 2, "spec.env: missing", NOW_S + 60) is None
