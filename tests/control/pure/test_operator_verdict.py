"""When a job goes on, is complete, has failed, or is tried again."""

from dataclasses import replace
from typing import Any

import pytest
from tests.control.pure.nats_in_memory import NatsInMemory
from tests.control.pure.scene import Scene, scene

from rollfleet_api.job import CollectorJobStatus
from rollfleet_api.messages import LearnerPhase, LearnerStatus, Progress
from rollfleet_api.permissions import Role
from rollfleet_api.state.conditions import conditions
from rollfleet_api.state.processes import Heartbeats
from rollfleet_api.state.verdict import Stage, begins_again
from rollfleet_api.times import format_time
from rollfleet_operator.job_memory import JobMemory
from rollfleet_operator.nats_port import JobKey

LEARNER: dict[str, Any] = {"template": {}}
GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available."


def learned(frames: int) -> LearnerStatus:
    return LearnerStatus(session=1, frames=frames)


TOTAL = scene(collect={"totalFrames": 100})
LEARNS = scene(learner=LEARNER, collect={"totalFrames": 100}).with_heartbeats(learner=learned(21))
DISRUPTED: Any = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
LEFT = LEARNS.ended("Complete", Role.LEARNER)
RUNS: Any = {"running": {}}
ENDED: Any = {"terminated": {"exitCode": 1}}
EVICTED: Any = {"reason": "Evicted", "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "10Gi". '}
REJECTED: Any = {"reason": "OutOfcpu", "message": "Pod was rejected: Node didn't have enough resource: cpu"}
SAVES = scene(learner=LEARNER, collect={"totalFrames": 100}).ended("Complete")
SAVES = SAVES.with_heartbeats(learner=learned(100), phase=LearnerPhase.COMPLETE)
HEARD = TOTAL.with_heartbeats(TOTAL.beat(0), learner=learned(64), phase=LearnerPhase.RUN)
NO_RESTARTS = scene(failure={"maxRestartsPerWorker": 0})


@pytest.mark.parametrize(
    ("found", "stage"),
    [
        pytest.param(scene().running(0, 1), Stage.LIVE, id="its workers run"),
        pytest.param(TOTAL.with_heartbeats(learner=learned(99)), Stage.LIVE, id="one frame is missing"),
        pytest.param(TOTAL.with_heartbeats(learner=learned(100)), Stage.COMPLETE, id="its frames are taken"),
        pytest.param(scene().with_heartbeats(phase=LearnerPhase.RUN), Stage.LIVE, id="its learner learns"),
        pytest.param(
            scene().with_heartbeats(phase=LearnerPhase.COMPLETE), Stage.COMPLETE, id="its learner completes it"
        ),
        pytest.param(scene().ended("Complete"), Stage.LIVE, id="its workers exit with 0"),
        pytest.param(TOTAL.ended("Complete"), Stage.LIVE, id="its workers exit with 0 before the last frame"),
        pytest.param(
            HEARD.ended("Complete"), Stage.COMPLETE, id="workers that were heard exit with 0, its word is lost"
        ),
        pytest.param(SAVES, Stage.LIVE, id="its learner's pod saves results after the last frame"),
        pytest.param(SAVES.ended("Complete", Role.LEARNER), Stage.COMPLETE, id="its learner's pod has ended"),
        pytest.param(LEARNS.ended("Complete", Role.LEARNER).exited(), Stage.COMPLETE, id="its learner exits with 0"),
        pytest.param(LEARNS.exited(phase="Running", beside=RUNS), Stage.COMPLETE, id="it does beside a sidecar"),
        pytest.param(LEARNS.exited(phase="Failed", beside=ENDED), Stage.COMPLETE, id="it does, and its sidecar fails"),
        pytest.param(LEARNS.exited(1, phase="Running", beside=RUNS), Stage.LIVE, id="it exits with 1 beside a sidecar"),
        pytest.param(LEFT.exited().deleted(), Stage.LIVE, id="its learner exits with 0 when it is deleted"),
        pytest.param(LEFT.exited(**DISRUPTED), Stage.LIVE, id="its learner exits with 0 when it is disrupted"),
        pytest.param(LEFT, Stage.LIVE, id="its learner's pod is gone"),
        pytest.param(NO_RESTARTS.crashed(1, ago_s=1e6), Stage.FAILED, id="a worker without restarts crashes"),
        pytest.param(NO_RESTARTS.crashed(1, code=3), Stage.LIVE, id="a worker ends with 3"),
        pytest.param(NO_RESTARTS.crashed(1, code=4), Stage.LIVE, id="a worker ends with 4"),
        pytest.param(NO_RESTARTS.crashed(1, code=143), Stage.LIVE, id="a worker ends with 143"),
        pytest.param(scene().running(0).unplaced(1, why=GPU, age_s=599), Stage.LIVE, id="a pod waits for a node"),
        pytest.param(scene().running(0).unplaced(1, why=GPU, age_s=600), Stage.FAILED, id="a pod waits too long"),
        pytest.param(
            scene(failure={"pendingDeadlineSeconds": 0}).unplaced(1, why=GPU, age_s=1e6),
            Stage.LIVE,
            id="a pod waits without a deadline",
        ),
        pytest.param(
            scene().unplaced(1, why=GPU, age_s=601).edited(suspend=True), Stage.LIVE, id="it was suspended meanwhile"
        ),
    ],
)
def test_stage_of_a_job_when(found: Scene, stage: Stage) -> None:
    assert found.verdict.stage is stage


@pytest.mark.parametrize(("phase", "early"), [(None, True), (LearnerPhase.RUN, True), (LearnerPhase.COMPLETE, False)])
def test_workers_that_exit_without_the_learners_word_have_left_early(phase: LearnerPhase | None, early: bool) -> None:
    left = scene(learner=LEARNER).ended("Complete").with_heartbeats(phase=phase)
    assert left.verdict.stage is Stage.LIVE  # the learner's pod saves its results
    assert ("WorkersLeft" in [each.reason for each in conditions(left.snapshot)]) == early


@pytest.mark.parametrize(
    ("session", "phase", "again"),
    [
        pytest.param(1, LearnerPhase.RUN, False, id="the learner that they followed, as it was heard last"),
        pytest.param(2, LearnerPhase.RUN, True, id="the next learner"),
        pytest.param(2, LearnerPhase.COMPLETE, False, id="the next learner, which has completed the job"),
    ],
)
def test_workers_that_were_let_go_start_again_for(session: int, phase: LearnerPhase, again: bool) -> None:
    followed = Progress(session=1, complete=True)
    found = LEARNS.with_heartbeats(
        LEARNS.beat(0, follows=followed), learner=LearnerStatus(session=session), phase=phase
    )
    assert begins_again(found.heartbeats) is again


def test_workers_that_followed_no_learner_do_not_start_again() -> None:
    found = LEARNS.with_heartbeats(LEARNS.beat(0), phase=LearnerPhase.RUN)
    assert not begins_again(found.heartbeats)


@pytest.mark.parametrize(("frames", "stage"), [(640, Stage.COMPLETE), (0, Stage.LIVE)])
def test_a_job_that_ended_while_the_operator_was_away_is_found_by_its_workers_exits(frames: int, stage: Stage) -> None:
    left = scene().ended("Complete")
    known = left.job.model_copy(update={"status": CollectorJobStatus(frames=frames)})
    assert replace(left, job=known).verdict.stage is stage


def test_crashes_over_many_days_end_no_job() -> None:
    found = scene()
    for day in range(30):
        found = found.crashed(1, ago_s=day * 86400)
    assert found.verdict.stage is Stage.LIVE


def test_crashes_in_a_row_end_the_job() -> None:
    found = scene(failure={"maxRestartsPerWorker": 3})
    for minute in (40, 30, 20):
        found = found.crashed(1, ago_s=60 * minute)
    assert found.crashed(2, ago_s=5).verdict.stage is Stage.LIVE
    verdict = found.crashed(1, ago_s=5, log="no level").verdict
    assert (verdict.stage, verdict.reason) == (Stage.FAILED, "TooManyRestarts")
    assert verdict.message == "after 3 restarts worker 1 ended with code 1: no level"


def test_crashes_in_a_row_end_a_job_with_its_learner() -> None:
    found = scene(learner=LEARNER, failure={"maxRestartsPerWorker": 1}).crashed(role=Role.LEARNER, ago_s=60)
    assert found.verdict.stage is Stage.LIVE
    assert found.crashed(role=Role.LEARNER).verdict.reason == "LearnerFailed"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (LEARNS.exited(), "the learner exited with code 0 after 21 of 100 frames"),
        (
            LEFT.with_heartbeats(learner=learned(21), phase=LearnerPhase.COMPLETE),
            "the learner has completed the job after 21 of 100 frames",
        ),
        (SAVES.ended("Complete", Role.LEARNER), "the learner has taken all 100 frames"),
    ],
)
def test_job_that_ended_by_mistake_differs_from_a_finished_one(found: Scene, message: str) -> None:
    assert (found.verdict.stage, found.verdict.message) == (Stage.COMPLETE, message)


def test_pods_that_their_node_refuses_or_evicts_count_as_restarts_and_disrupted_ones_do_not() -> None:
    found = scene(failure={"maxRestartsPerWorker": 1}).pod(phase="Failed", age_s=30, **REJECTED)
    for disrupted in range(3):
        found = found.exited(143, role=Role.WORKER, phase="Failed", **EVICTED, **DISRUPTED)
        assert found.verdict.stage is Stage.LIVE, disrupted
    found = found.exited(143, role=Role.WORKER, phase="Failed", age_s=5, **EVICTED)
    assert (found.verdict.stage, found.verdict.reason) == (Stage.FAILED, "TooManyRestarts")
    cause = 'worker 0 (Evicted): Usage of EmptyDir volume "tmp" exceeds the limit "10Gi".'
    assert found.verdict.message == f"after 1 restart node n ended {cause}"


def test_pods_that_a_deadline_of_the_template_ends_count_as_restarts() -> None:
    found = scene(failure={"maxRestartsPerWorker": 0}, template={"spec": {"activeDeadlineSeconds": 60}})
    found = found.exited(143, role=Role.WORKER, phase="Failed", reason="DeadlineExceeded", message="Pod was active")
    assert found.verdict.message == "after 0 restarts node n ended worker 0 (DeadlineExceeded): Pod was active"


def test_crashes_before_a_failure_do_not_count_again() -> None:
    failed = scene(failure={"maxRestartsPerWorker": 0}).crashed(1).later(1)
    assert failed.verdict.stage is Stage.FAILED
    again = failed.edited(workers=3).later(10)
    assert again.verdict.stage is Stage.LIVE
    assert again.later(1).crashed(1, ago_s=0).verdict.stage is Stage.FAILED


CRASHED = scene().crashed(0, code=2, log="no environment `X-v9`").crashed(1, code=143, ago_s=1).ended("Failed")


@pytest.mark.parametrize(
    ("found", "reason", "message"),
    [
        (CRASHED, "WorkerFailed", "worker 0 ended with code 2: no environment `X-v9`"),
        (
            CRASHED.with_heartbeats(CRASHED.beat(0, fatal=True, error="env: no environment `X-v9`")),
            "WorkerFailed",
            "worker 0: env: no environment `X-v9`",
        ),
        (
            scene(learner=LEARNER).crashed(role=Role.LEARNER, log="NaN in the loss").ended("Failed", Role.LEARNER),
            "LearnerFailed",
            "the learner ended with code 1: NaN in the loss",
        ),
        (
            scene(resources={"gpu": {"count": 9}}).unplaced(1, why=GPU, age_s=601),
            "InsufficientDevices",
            f"given up after 600 s (`pendingDeadlineSeconds`): worker 1 waits for a node with 9 nvidia.com/gpu: {GPU}",
        ),
    ],
    ids=["a worker that would fail again", "the error that it sent", "the learner", "the deadline of a pod"],
)
def test_failure_names_its_cause(found: Scene, reason: str, message: str) -> None:
    assert (found.verdict.stage, found.verdict.reason) == (Stage.FAILED, reason)
    assert found.verdict.message == message


@pytest.mark.parametrize(("ago_s", "stage"), [(599, Stage.LIVE), (601, Stage.FAILED)])
def test_pod_on_a_node_has_the_deadline_again_to_start(ago_s: float, stage: Stage) -> None:
    before = scene()
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(before.now_s - ago_s)}
    assert before.pod(1, age_s=1190, phase="Pending", conditions=[placed]).verdict.stage is stage


def test_pods_that_are_refused_for_too_long_fail_the_job() -> None:
    found = scene().refusing_pods('pods "x" is forbidden: exceeded quota: gpus')
    assert found.verdict.stage is Stage.LIVE
    assert found.later(599).verdict.stage is Stage.LIVE
    assert (found.later(601).verdict.stage, found.later(601).verdict.reason) == (Stage.FAILED, "QuotaExceeded")


def test_worker_that_loses_its_node_in_mid_run_fails_no_job() -> None:
    found = scene().running(0, 1)
    ready = found.with_heartbeats(found.beat(0), found.beat(1)).later(10_000)
    lost = replace(ready, pods=ready.pods[:1]).unplaced(1, why=GPU, age_s=5000)
    assert lost.verdict.stage is Stage.LIVE
    assert lost.refusing_pods("exceeded quota: gpus").later(5000).verdict.stage is Stage.LIVE


def test_deadline_counts_again_after_a_failure() -> None:
    found = scene().running(0, 1)
    ready = found.with_heartbeats(found.beat(0), found.beat(1)).later(100)
    again = ready.ended("Failed").later(100).edited(image="mended:2").later(100).with_children().later(100)
    assert again.verdict.stage is Stage.LIVE
    assert replace(again, pods=()).unplaced(1, why=GPU, age_s=0).later(601).verdict.stage is Stage.FAILED


def test_complete_stays_complete_whatever_is_observed_later() -> None:
    found = scene().with_heartbeats(phase=LearnerPhase.COMPLETE).later(60)
    assert found.with_heartbeats().verdict.stage is Stage.COMPLETE
    assert found.with_heartbeats().ended("Failed").edited(workers=3).verdict.stage is Stage.COMPLETE


def test_failed_stays_failed_until_the_spec_changes_and_the_failed_run_is_deleted() -> None:
    # Else a run that is still seen, because the cache lags, would be taken for a new failure.
    failed = scene().crashed(code=2).ended("Failed").later(60)
    assert failed.verdict.stage is Stage.FAILED
    edited = failed.edited(image="mended:2")
    assert (edited.verdict.stage, edited.later(1).verdict.stage) == (Stage.RETRY, Stage.RETRY)
    assert edited.later(1).with_children().verdict.stage is Stage.LIVE


def test_wait_before_a_failure_does_not_count_again() -> None:
    failed = scene().unplaced(1, why=GPU, age_s=601).later(1)
    assert failed.verdict.stage is Stage.FAILED
    again = failed.edited(failure={"pendingDeadlineSeconds": 300}).later(10)
    assert again.verdict.stage is Stage.LIVE
    assert again.later(300).verdict.stage is Stage.FAILED


def test_a_job_fails_when_no_learner_has_sent_a_heartbeat_in_time() -> None:
    found = scene(failure={"learnerTimeoutSeconds": 60})
    alive = replace(learned(9), time_s=found.now_s - 59)
    assert found.with_heartbeats(learner=alive).verdict.stage is Stage.LIVE
    gone = found.with_heartbeats(learner=replace(alive, time_s=found.now_s - 60)).verdict
    assert (gone.stage, gone.reason) == (Stage.FAILED, "LearnerGone")
    assert scene().with_heartbeats(learner=learned(9)).verdict.stage is Stage.LIVE  # no limit by default


@pytest.mark.parametrize("queue", [{}, {"kueue.x-k8s.io/queue-name": "gpus"}])
def test_learner_that_is_suspended_with_its_job_is_not_gone(queue: dict[str, str]) -> None:
    found = scene(labels=queue, failure={"learnerTimeoutSeconds": 60}, learner={"template": {}})
    found = found.with_heartbeats(learner=replace(learned(9), time_s=found.now_s)).later(1)
    waits = (found.suspended() if queue else found.edited(suspend=True)).later(3600)
    assert waits.verdict.stage is Stage.LIVE
    resumed = (waits.suspended(False) if queue else waits.edited(suspend=False)).later(58)
    assert resumed.verdict.stage is Stage.LIVE
    assert resumed.later(2).verdict.reason == "LearnerGone"


def test_learner_outside_that_is_gone_ends_a_job_in_a_queue() -> None:
    found = scene(labels={"kueue.x-k8s.io/queue-name": "gpus"}, failure={"learnerTimeoutSeconds": 60})
    found = found.with_heartbeats(learner=replace(learned(9), time_s=found.now_s))
    waits = found.suspended().later(58)
    assert waits.verdict.stage is Stage.LIVE
    assert waits.later(2).verdict.reason == "LearnerGone"


@pytest.mark.parametrize(("age_s", "stage"), [(59, Stage.LIVE), (60, Stage.FAILED)])
def test_a_job_fails_when_no_learner_has_ever_come_in_time(age_s: float, stage: Stage) -> None:
    found = scene(failure={"learnerTimeoutSeconds": 60})
    metadata = found.job.metadata.model_copy(update={"creation_timestamp": format_time(found.now_s - age_s)})
    assert replace(found, job=found.job.model_copy(update={"metadata": metadata})).verdict.stage is stage


@pytest.mark.parametrize("known", [True, False], ids=["same-operator", "next-operator"])
async def test_a_learner_is_not_gone_while_nats_is_silent_nor_when_it_answers_again(known: bool) -> None:
    found, nats, memory = scene(failure={"learnerTimeoutSeconds": 60}), NatsInMemory(), JobMemory()
    nats.beats[JobKey("lab", "cartpole")] = Heartbeats(learner=replace(learned(9), time_s=found.now_s))

    async def stage_after(seconds: float) -> Stage:
        now_s = found.now_s + seconds
        await memory.read_heartbeats(nats, found.job, now_s, serves=True)
        return replace(found, heartbeats=memory.heartbeats, now_s=now_s).verdict.stage

    if known:
        assert await stage_after(0) is Stage.LIVE
    nats.away = True
    assert await stage_after(3600) is Stage.LIVE
    nats.away = False
    assert await stage_after(3605) is Stage.LIVE  # the first heartbeat since then is on its way
    assert await stage_after(3664) is Stage.LIVE
    assert await stage_after(3665) is Stage.FAILED
