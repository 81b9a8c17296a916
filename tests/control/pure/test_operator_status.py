"""The status of a job."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from tests.control.pure.scene import Scene, condition, scene

from rollfleet_api.messages import LearnerStatus, Statistic, WorkerState
from rollfleet_api.permissions import Role
from rollfleet_api.state.problems import Problem
from rollfleet_api.state.status import is_transition, not_reconciled, ours, status
from rollfleet_api.status import CollectorJobStatus, Condition, ConditionStatus, EpisodeStatistic, Phase, WaitsStatus
from rollfleet_api.times import format_time
from rollfleet_operator.manifest import Ref

NOW_S = 1_800_000_000.0  # in every scene
GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def status_of(scene: Scene, problem: Problem | None = None) -> CollectorJobStatus:
    return status(replace(scene.snapshot, problem=problem))


def holds(found: CollectorJobStatus, kind: str) -> tuple[bool, str]:
    each = condition(found, kind)
    return each.status is ConditionStatus.TRUE, each.reason


def collecting(scene: Scene, *indices: int) -> Scene:
    return scene.running(*indices).with_heartbeats(*(scene.beat(index) for index in indices))


def learner(**fields: Any) -> LearnerStatus:
    return LearnerStatus(**{"session": 1, "lag": 1, "time_s": NOW_S} | fields)


def test_returns_and_waits_are_those_of_the_heartbeats() -> None:
    found = scene().running(0, 1)
    workers = [
        found.beat(
            0, waited_for_space_s=1.9, waited_for_weights_s=7.0, newest_failure="environment 3: B", failed_s=9.0
        ),
        found.beat(1, waited_for_space_s=2.5, newest_failure="environment 3: A", failed_s=8.0),
    ]
    now = status_of(
        found.with_heartbeats(
            *workers,
            learner=learner(
                mean_return=-142.4567,
                episode_statistics={"success": Statistic(mean=2 / 3, min=0.0, max=1.0, count=3)},
                episodes=77,
                waited_s=3.7,
                non_finite=5,
                failed_episodes={"TimeoutError": 2},
            ),
        )
    )
    assert now.episode_statistics == {"success": EpisodeStatistic(mean=0.6667, min=0.0, max=1.0, count=3)}
    assert now.failed_episodes == {"TimeoutError": 2}
    assert now.newest_failure == "worker 0, environment 3: B"
    assert (now.mean_return, now.episodes, now.lag, now.non_finite) == (-142.5, 77, 1, 5)
    assert now.waits == WaitsStatus(learner_seconds=3, workers_for_learner_seconds=3, workers_for_weights_seconds=7)
    stopped = found.edited(suspend=True)
    said = [status(replace(each.snapshot, bottleneck="The workers are.")).bottleneck for each in (found, stopped)]
    assert said == ["The workers are.", ""]
    gone = found.with_heartbeats(learner=learner(mean_return=3.0, waited_s=5.0)).later(10).with_heartbeats()
    assert (status_of(gone).mean_return, status_of(gone).waits.learner_seconds) == (3.0, 5)


@pytest.mark.parametrize("value", [inf, -inf, nan])
def test_return_that_is_no_number_of_json_is_left_out(value: float) -> None:
    assert status_of(scene().with_heartbeats(learner=learner(mean_return=value))).mean_return is None


def test_worker_is_ready_when_it_runs_and_reports() -> None:
    assert status_of(scene().running(0, 1)).workers.ready == 0
    assert status_of(collecting(scene(), 0, 1)).workers.ready == 2


@pytest.mark.parametrize(
    "beat",
    [
        {"state": WorkerState.STARTING},
        {"state": WorkerState.FAILED},
        {"time_s": NOW_S - 31},
        {"time_s": NOW_S + 31},
    ],
    ids=["starting", "failed", "silent", "from the future"],
)
def test_worker_that_is_starting_failed_or_silent_is_not_ready(beat: dict[str, Any]) -> None:
    found = scene().running(0, 1)
    found = found.with_heartbeats(found.beat(0), found.beat(1, **beat))
    assert status_of(found).workers.ready == 1
    assert condition(status_of(found), "Ready").message == "1 of 2 workers run and report"


def test_heartbeat_of_the_pod_before_does_not_make_the_new_one_ready() -> None:
    found = scene().pod(0, age_s=0.0, phase="Running", containerStatuses=[{"name": "w", "state": {"running": {}}}])
    assert status_of(found.with_heartbeats(found.beat(0))).workers.ready == 0


@pytest.mark.parametrize("role", [Role.WORKER, Role.LEARNER])
@pytest.mark.parametrize("deleted", [False, True])
def test_pod_whose_node_does_not_answer_is_reported_with_it(role: Role, deleted: bool) -> None:
    unknown = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}]
    found = scene(learner={"template": {}}).pod(role=role, phase="Running", conditions=unknown)
    degraded = condition(status_of(found.deleted() if deleted else found), "Degraded")
    who = "the learner" if role is Role.LEARNER else "worker 0"
    assert degraded.reason == "NodeLost"
    assert degraded.message == f"node n of {who} does not answer (Pod {found.pods[0]['metadata']['name']})"


def test_leaving_worker_does_not_count() -> None:
    found = scene(resources={"gpu": {"count": 1}}).running(0, 1).deleted()
    now = status_of(found.with_heartbeats(found.beat(0), found.beat(1)))
    assert (now.workers.ready, now.gpus) == (1, 1)


def test_counters_are_the_learners_and_stay_when_its_heartbeats_stop() -> None:
    beat = learner(version=9, applied_version=8, frames=640, batches=10, dropped=2)
    found = collecting(scene(), 0, 1).with_heartbeats(learner=beat)
    now = status(replace(found.snapshot, frames_per_second=123.456))
    assert (now.frames, now.frames_per_second, now.published_version, now.applied_version) == (640, 123.5, 9, 8)
    assert (now.batches.delivered, now.batches.dropped) == (10, 2)
    assert status_of(found.later(10).with_heartbeats()).frames == 640


def test_gpus_are_those_of_running_workers() -> None:
    found = scene(resources={"gpu": {"count": 2}}).running(0).unplaced(1, why=GPU)
    assert status_of(found).gpus == 2


def test_selector_finds_the_workers() -> None:
    labels = scene().run()["spec"]["template"]["metadata"]["labels"]
    wanted = dict(pair.split("=") for pair in str(status_of(scene()).selector).split(","))
    assert wanted.items() <= labels.items()


def busy(state: WorkerState) -> Scene:
    found = scene().running(0)
    return found.with_heartbeats(found.beat(0, state))


QUEUED = scene(labels={"kueue.x-k8s.io/queue-name": "gpus"}).suspended()
SUSPENDED = collecting(scene(), 0, 1).edited(suspend=True)
ROLLED = collecting(scene(image="a:1"), 0, 1).edited(image="a:2")


@pytest.mark.parametrize(
    ("found", "kind", "holds", "reason"),
    [
        (busy(WorkerState.COLLECTING), "Progressing", True, "Collecting"),
        (busy(WorkerState.WAITING_FOR_WEIGHTS), "Progressing", True, "WaitingForWeights"),
        (busy(WorkerState.WAITING_FOR_LEARNER), "Progressing", True, "WaitingForLearner"),
        (ROLLED, "Progressing", True, "Rolling"),
        (SUSPENDED, "Progressing", False, "Suspended"),
        (SUSPENDED, "Suspended", True, "Suspended"),
        (QUEUED, "Progressing", False, "Queued"),
        (QUEUED, "Suspended", True, "Queued"),
        (collecting(scene(), 0, 1), "Ready", True, "AllWorkersReady"),
    ],
)
def test_condition_has_its_reason(found: Scene, kind: str, holds: bool, reason: str) -> None:
    now = condition(status_of(found), kind)
    assert (now.status is ConditionStatus.TRUE, now.reason) == (holds, reason)


def test_workers_whose_frames_are_taken_are_collecting_also_while_they_wait() -> None:
    waits = busy(WorkerState.WAITING_FOR_LEARNER).snapshot
    assert holds(status(replace(waits, frames_per_second=9.0)), "Progressing") == (True, "Collecting")


def test_suspended_job_wants_no_workers_and_old_workers_that_are_leaving_count_no_more() -> None:
    now = status_of(SUSPENDED)
    assert (now.phase, now.workers.desired, now.workers.ready) == (Phase.SUSPENDED, 0, 0)
    assert status_of(ROLLED).workers.ready == 0


@pytest.mark.parametrize(
    ("fact", "message", "reason"),
    [
        ("unplaced", GPU, "InsufficientDevices"),
        ("unplaced", "0/3 nodes are available: 3 Insufficient cpu, 2 Insufficient memory.", "InsufficientResources"),
        ("unplaced", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity.", "Unschedulable"),
        ("ImagePullBackOff", "no such image", "ImagePullFailed"),
        ("CreateContainerConfigError", "no such Secret", "ContainerRefused"),
        ("refused", 'pods "x" is forbidden: exceeded quota: gpus, requested: gpu=1', "QuotaExceeded"),
        ("refused", 'pods "x" is forbidden: failed quota: q: must specify limits.cpu for: worker', "ResourcesMissing"),
        ("refused", 'admission webhook "w" denied the request: a label is forbidden', "PodsRefused"),
        ("refused", 'pods "x" is forbidden: violates PodSecurity "restricted:latest"', "PodSecurityViolation"),
        ("refused", 'pods "x" is forbidden: error looking up service account', "Forbidden"),
        ("problem", "the API server refuses: jobs.batch is forbidden", "Forbidden"),
    ],
)
def test_words_of_the_cluster_become_a_reason(fact: str, message: str, reason: str) -> None:
    found, problem = scene(resources={"gpu": {"count": 9}}), Problem(reason, message) if fact == "problem" else None
    if fact == "unplaced":
        found = found.unplaced(0, why=message)
    elif fact == "refused":
        found = found.refusing_pods(message)
    elif not problem:
        found = found.waiting(0, reason=fact, message=message)
    assert holds(now := status_of(found, problem), "Degraded") == (True, reason)
    assert message in condition(now, "Degraded").message


def test_an_image_is_missing_in_the_same_words_while_the_kubelet_waits() -> None:
    tries = scene().waiting(0, reason="ErrImagePull", message="registry/x:1: not found")
    message = 'Back-off pulling image "registry/x:1": ErrImagePull: registry/x:1: not found'
    waits = scene().waiting(0, reason="ImagePullBackOff", message=message)
    messages = [condition(status_of(each), "Degraded").message for each in (tries, waits)]
    assert messages == ["worker 0 has no image: registry/x:1: not found"] * 2


def test_crash_is_reported_with_the_last_line_of_the_log_until_the_worker_is_back() -> None:
    found = scene().crashed(1, log="a\nRuntimeError: simulator lost\n\n")
    assert holds(status_of(found), "Degraded") == (True, "WorkerCrashed")
    assert status_of(found).last_error == "worker 1 ended with code 1: RuntimeError: simulator lost"
    back = collecting(found, 0, 1)
    assert holds(status_of(back), "Degraded") == (False, "AsExpected")
    assert status_of(back).last_error == "worker 1 ended with code 1: RuntimeError: simulator lost"


def test_crash_of_an_init_container_names_it() -> None:
    inits = [{"name": "fetch", "state": {"terminated": {"exitCode": 2, "message": "no such bucket"}}}]
    waits = [{"name": "worker", "state": {"waiting": {"reason": "PodInitializing"}}}]
    now = status_of(scene().pod(1, phase="Failed", initContainerStatuses=inits, containerStatuses=waits))
    assert condition(now, "Degraded").message == "init container `fetch` of worker 1 ended with code 2: no such bucket"


def test_server_that_ends_again_and_again_is_reported_with_its_last_end_and_given_up() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    backs_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    nats = {"name": "nats", "ready": False, "state": backs_off, "lastState": {"terminated": ended}}
    found = scene().pod(role=Role.NATS, phase="Running", containerStatuses=[nats])
    assert holds(status_of(found), "Degraded") == (True, "NatsCrashed")
    message = "the job's NATS server ended with code 137 (out of memory): OOMKilled"
    assert condition(status_of(found), "Degraded").message == message
    assert [pod.state for pod in found.observed.pods] == ["CrashLoopBackOff"]
    assert replace(found, now_s=found.now_s + 600).verdict.reason == "NatsCrashed"
    back = scene().pod(
        role=Role.NATS, phase="Running", containerStatuses=[{**nats, "state": {"running": {}}, "ready": True}]
    )
    assert holds(status_of(back), "Degraded") == (False, "AsExpected")


def test_server_whose_pod_is_refused_or_finds_no_image_is_reported() -> None:
    message = 'pods "cartpole-nats-1" is forbidden: exceeded quota: team, requested: pods=1'
    condition_of = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    found = scene()
    refused = status_of(found.changed(Ref("Deployment", "cartpole-nats"), {"status": {"conditions": [condition_of]}}))
    assert holds(refused, "Degraded") == (True, "QuotaExceeded")
    assert message in condition(refused, "Degraded").message
    missing = {"name": "nats", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    waits = status_of(found.pod(role=Role.NATS, phase="Pending", containerStatuses=[missing]))
    assert condition(waits, "Degraded").message == "the job's NATS server has no image: no such image"


def test_sidecar_that_does_not_run_is_reported_beside_a_worker_that_does() -> None:
    backs_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}
    states = [{"name": "worker", "state": {"running": {}}}, {"name": "proxy", "state": backs_off}]
    found = scene().pod(phase="Running", containerStatuses=states)
    assert holds(status_of(found), "Degraded") == (True, "WorkerCrashed")
    assert [(pod.running, pod.state) for pod in found.observed.pods] == [(True, "Running")]


def test_error_of_whitespace_is_none() -> None:
    found = scene().running(0).crashed(1, log=" \n")
    assert status_of(found.with_heartbeats(found.beat(0, error=" \n \t"))).last_error == (
        "worker 1 ended with code 1: Error"
    )
    assert status_of(found.with_heartbeats(found.beat(0, error="a\nb: c\n \n"))).last_error == "worker 0: b: c"


def test_long_messages_are_clipped() -> None:
    long = "x" * 33_000
    found = scene().crashed(1, log=long).ended("Failed", message=long)
    now = status_of(found.with_heartbeats(found.beat(0, error=long)), Problem("Invalid", long))
    assert {len(each.message) for each in now.conditions if each.reason == "Invalid"} == {1024}
    assert len(condition(now, "Failed").message) == len(now.last_error or "") == 1024


@pytest.mark.parametrize(
    ("reason", "message", "shown", "progressing"),
    [
        ("OperatorError", "x" * 33_000, "x" * 1023 + "…", (True, "Starting")),
        ("Invalid", "spec.env: missing", "spec.env: missing", (False, "Invalid")),
    ],
    ids=["error of the operator", "invalid job"],
)
def test_job_that_cannot_be_reconciled_reports_it_once_and_keeps_its_counters(
    reason: str, message: str, shown: str, progressing: tuple[bool, str]
) -> None:
    before = status_of(scene().running(0)).model_copy(update={"frames": 7})
    now = not_reconciled(before.model_dump(mode="json", by_alias=True), 2, reason, message, NOW_S)
    assert now is not None
    assert (holds(now, "Degraded"), holds(now, "Progressing")) == ((True, reason), progressing)
    assert condition(now, "Degraded").message == shown
    assert (now.frames, now.observed_generation) == (7, 2)
    assert not_reconciled(now.model_dump(mode="json", by_alias=True), 2, reason, message, NOW_S + 60) is None


def test_end_has_a_time_that_stays() -> None:
    failed = scene().crashed(code=2).ended("Failed")
    when = format_time(failed.now_s)
    assert (status_of(failed).phase, status_of(failed).completion_time) == (Phase.FAILED, when)
    assert status_of(failed.later(500)).completion_time == when


def test_transition_has_its_time() -> None:
    early = scene()
    late = collecting(early.later(100), 0, 1)
    assert condition(status_of(late), "Ready").last_transition_time == format_time(late.now_s)
    assert condition(status_of(late), "Complete").last_transition_time == format_time(early.now_s)


def test_another_number_is_no_transition_and_another_condition_is() -> None:
    found = status_of(collecting(scene(), 0, 1))
    assert not is_transition(found, found.model_copy(update={"frames": 5}))
    assert is_transition(None, found)
    assert is_transition(status_of(scene()), found)


def test_conditions_of_other_controllers_are_left_out() -> None:
    found = status_of(scene())
    theirs = Condition(type="Theirs", status=ConditionStatus.TRUE)
    assert ours(found.model_copy(update={"conditions": [theirs, *found.conditions]})) == found
