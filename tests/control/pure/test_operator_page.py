"""What the page shows of jobs: rows, workers, timelines and histories."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import kopf
import pytest
from tests.control.pure.scene import NOW_S, Scene, scene

from rollfleet_api.diagnosis import diagnose
from rollfleet_api.messages import LearnerPhase, LearnerStatus, WorkerState
from rollfleet_api.permissions import Role
from rollfleet_api.state.problems import Problem
from rollfleet_api.state.status import status
from rollfleet_api.times import format_time
from rollfleet_api.validation import parse_job
from rollfleet_api.views import JobView
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache
from rollfleet_operator.manifest import Ref
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.ui.logs import PodLogs
from rollfleet_operator.ui.shown_jobs import ShownJobs
from rollfleet_ui.job_record import JobRecord
from rollfleet_ui.model import Happened
from rollfleet_ui.rows import worker_rows

KEY = JobKey("lab", "cartpole")
LEARNER = LearnerStatus(session=1, version=5, applied_version=4, frames=640, mean_return=21.5, time_s=NOW_S - 1)


class Stage:
    """The jobs of the page, and the operator's cache beside it."""

    def __init__(self, api: Api) -> None:
        self.cache, self._version = Cache(), 0
        self.page = ShownJobs(self.cache, PodLogs(self.cache, api))

    @property
    def job(self) -> JobRecord:
        return self.page.jobs()["/".join(KEY)]

    def see(self, scene: Scene, **changes: Any) -> None:
        manifest: Any = scene.job.dump()
        self._version += 1
        manifest["metadata"] |= {"resourceVersion": str(self._version)}
        self.cache.put(manifest)
        snapshot = replace(scene.snapshot, **changes)
        self.page.update(KEY, snapshot, status(snapshot))

    def delete(self, scene: Scene) -> None:
        manifest: Any = scene.job.dump()
        self._version += 1
        self.cache.remove({**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self._version)}})
        self.page.update(KEY)

    def moments(self) -> list[tuple[str, str]]:
        return [(each.kind, each.text) for each in self.job.timeline()]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Api(lambda: kopf.ConnectionInfo(server="https://nowhere")) as api:
        yield Stage(api)


@pytest.fixture
def running() -> Scene:
    """A job with two workers at work, and a learner elsewhere."""
    begun = scene(collect={"framesPerBatch": 64, "totalFrames": 1000}).running(0, 1)
    beats = [begun.beat(index, version=4, frames=100, frames_per_second=10.0) for index in (0, 1)]
    return begun.with_heartbeats(*beats, learner=LEARNER).later(5)


def test_the_row_and_the_diagnosis_are_those_of_top_and_describe(stage: Stage, running: Scene) -> None:
    stage.see(running, frames_per_second=20.0)
    row = stage.job.row
    assert (row.key, row.phase, row.workers_ready, row.workers_desired) == ("lab/cartpole", "Running", 2, 2)
    assert (row.frames, row.total_frames, row.frames_per_second, row.mean_return, row.lag) == (640, 1000, 20.0, 21.5, 1)
    assert row.created == NOW_S - 100
    page: Any = stage.job.page()
    manifest: Any = running.later(0).job.dump()
    assert row.diagnosis == diagnose(JobView.model_validate(manifest, by_alias=True, by_name=False))
    assert page.row == row
    assert "numEnvs: 1" in page.spec
    assert "workers" not in page.defaulted or "numEnvs" in "".join(page.defaulted)
    assert {each.kind for each in page.objects} == {
        "Deployment",
        "Job",
        "NetworkPolicy",
        "Secret",
        "Service",
        "ServiceAccount",
    }


def test_the_sentence_about_waits_is_that_of_the_status(stage: Stage, running: Scene) -> None:
    stage.see(running, bottleneck="The environments are.")
    assert stage.job.page().status.bottleneck == "The environments are."


def test_a_server_that_ends_again_and_again_is_shown_with_its_reason(stage: Stage) -> None:
    backs_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    ended = {"terminated": {"exitCode": 1, "message": "nats-server: error parsing\n"}}
    nats = {"name": "nats", "ready": False, "state": backs_off, "lastState": ended}
    begun = scene().pod(role=Role.NATS, phase="Running", containerStatuses=[nats])
    stage.see(begun.changed(Ref("Deployment", "cartpole-nats"), {"status": {"readyReplicas": 0}}))
    states = {each.kind: each.state for each in stage.job.page().objects}
    assert states["Deployment"] == "the job's NATS server ended with code 1: nats-server: error parsing"


def test_workers_are_shown_with_their_pods_and_heartbeats(stage: Stage) -> None:
    begun = scene(workers=4, resources={"gpu": {"count": 1}}).crashed(0, log="ValueError: <b>boom</b>\n", ago_s=30)
    begun = begun.running(0, 1).unplaced(2, why="0/3 nodes: Insufficient nvidia.com/gpu")
    beat = begun.beat(0, WorkerState.COLLECTING, version=3, incarnation=1, frames=64, frames_per_second=8.0)
    stage.see(begun.with_heartbeats(beat, learner=LEARNER))
    first, second, third, fourth, learner = stage.job.workers()
    assert (first.index, first.state, first.incarnation, first.version, first.lag) == (0, "Collecting", 1, 3, 2)
    assert (first.restarts, first.has_previous, first.gpus) == (1, True, 1)
    assert first.last_error == "ValueError: <b>boom</b>"
    assert (second.state, second.version, second.has_previous) == ("Starting", None, False)
    assert third.state == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in third.last_error
    assert (fourth.state, fourth.since) == ("Pending", None)
    assert (learner.index, learner.state, learner.version, learner.frames) == (None, "Connected", 5, 640)


def test_evaluation_workers_are_shown_with_their_pods(stage: Stage) -> None:
    begun = scene(workers=1, evaluation={"every": 1, "workers": 2}).crashed(1, log="boom\n", role=Role.EVALUATION)
    stage.see(begun.pod(1, role=Role.EVALUATION, phase="Running").pod(0, role=Role.EVALUATION, phase="Pending"))
    _, first, second, _ = stage.job.workers()
    assert (first.process, first.index, first.state) == ("evaluation worker 0", None, "Pending")
    assert (second.process, second.index, second.state) == ("evaluation worker 1", None, "Running")
    assert (second.restarts, second.has_previous, second.last_error) == (1, True, "boom")


def test_rows_of_workers_are_made_once_and_kept_of_one_job_alone(stage: Stage, running: Scene) -> None:
    stage.see(running)
    rows = stage.job.workers()
    assert stage.job.workers() is rows
    worker_rows(replace(running.snapshot))
    assert stage.job.workers() is not rows


def test_a_worker_without_heartbeats_is_silent(stage: Stage, running: Scene) -> None:
    stage.see(running.later(60))
    first, _, learner = stage.job.workers()
    assert (first.state, first.frames_per_second, first.frames) == ("Silent", 0.0, 100)
    assert learner.state == "Silent"


def test_a_deleted_pod_and_a_crash_are_moments_once(stage: Stage, running: Scene) -> None:
    stage.see(running)
    killed = replace(running, pods=running.pods[1:])
    stage.see(killed)
    stage.see(killed)
    stage.see(killed.crashed(1, log="boom", ago_s=-1))
    ended = [text for kind, text in stage.moments() if kind == Happened.WORKER_ENDED]
    assert ended == ["worker 0 ended: its pod was deleted", "worker 1 ended with code 1: boom"]


def test_a_learners_crash_is_a_moment(stage: Stage) -> None:
    stage.see(scene(learner={"template": {}}).running(0, 1).crashed(role=Role.LEARNER, log="no such file"))
    assert (Happened.LEARNER_ENDED, "the learner ended with code 1: no such file") in stage.moments()


def test_edits_are_moments_with_their_difference(stage: Stage, running: Scene) -> None:
    stage.see(running)
    for spec in ({"workers": 3}, {"suspend": True}, {"suspend": False}, {"collect": {"framesPerBatch": 32}}):
        running = running.edited(**spec)
        stage.see(running)
    edits = [each for each in stage.job.timeline() if each.kind in ("Scaled", "Suspended", "Resumed", "Edited")]
    assert [each.text for each in edits] == ["scaled from 2 to 3 workers", "suspended", "resumed", "edited collect"]
    assert "-  framesPerBatch: 64\n+  framesPerBatch: 32" in edits[-1].detail


def test_nats_away_is_a_moment_until_it_is_back(stage: Stage, running: Scene) -> None:
    away = Problem("NatsUnavailable", "NATS did not answer")
    for problem in (None, away, away, None):
        stage.see(running, problem=problem)
    kinds = [kind for kind, _ in stage.moments() if kind.startswith("Nats")]
    assert kinds == [Happened.NATS_AWAY, Happened.NATS_BACK]


def test_the_end_is_a_moment_and_the_curve_ends_with_it(stage: Stage, running: Scene) -> None:
    stage.see(running)
    ended = running.with_heartbeats(*running.heartbeats.workers.values(), learner=LEARNER, phase=LearnerPhase.COMPLETE)
    for each in (ended.later(5), ended.later(5).later(3600)):
        stage.see(each)
    times = stage.job.history().time
    assert times[-1] - times[0] < 60
    assert [kind for kind, _ in stage.moments()].count(Happened.COMPLETE) == 1
    assert [row.frames for row in stage.job.workers()] == [100, 100, 640]


def test_a_deleted_job_is_gone(stage: Stage, running: Scene) -> None:
    stage.see(running)
    stage.delete(running)
    assert stage.page.jobs() == {}


def test_a_new_job_of_the_name_has_its_own_history(stage: Stage, running: Scene) -> None:
    stage.see(running)
    other: Any = running.job.dump()
    other["metadata"] |= {"uid": "another", "creationTimestamp": format_time(NOW_S + 100)}
    stage.see(replace(running, job=parse_job(other)).later(200))
    row = stage.job.row
    assert row.uid == "another"
    assert min(stage.job.history().time) > NOW_S + 100


def test_an_invalid_job_is_shown_with_its_reason(stage: Stage, running: Scene) -> None:
    manifest: Any = running.job.dump()
    condition = {"type": "Degraded", "status": "True", "reason": "Invalid", "message": "spec.workers: too few"}
    manifest["metadata"]["resourceVersion"] = "9"
    manifest |= {"spec": {**manifest["spec"], "workers": 0}, "status": {"conditions": [condition]}}
    stage.cache.put(manifest)
    stage.page.update(KEY)
    row = stage.job.row
    assert (row.diagnosis.is_problem, row.diagnosis.reason) == (True, "Invalid")
    page: Any = stage.job.page()
    assert "workers: 0" in page.spec


def test_a_job_that_is_being_deleted_is_shown_so_with_its_workers(stage: Stage, running: Scene) -> None:
    stage.see(running)
    manifest: Any = running.job.dump()
    manifest["metadata"] |= {"resourceVersion": "9", "deletionTimestamp": format_time(NOW_S)}
    stage.cache.put(manifest)
    stage.page.update(KEY)
    assert stage.job.row.diagnosis.state == "Deleting"
    assert len(stage.job.workers()) == 3
