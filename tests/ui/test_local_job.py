"""The state of a run on this machine, by the rules of a cluster's jobs."""

from pathlib import Path

import pytest

from rollfleet.testing import small_job
from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Crash, Pod
from rollfleet_api.state.problems import Problem
from rollfleet_api.state.processes import Heartbeats, Processes, Run
from rollfleet_api.state.verdict import Stage, Verdict
from rollfleet_ui.local_job import LocalJob
from rollfleet_ui.model import Happened, JobPage

NOW_S = 1_700_000_000.0
RUNS = {Role.WORKER: Run(name="worker", role=Role.WORKER, uid="worker", pods=2)}
STOPPED = Verdict(Stage.LIVE, "Stopped", "by Ctrl-C")


def run() -> LocalJob:
    return LocalJob(small_job(workers=2), Path("runs/test/1"), NOW_S - 60)


def look(
    run: LocalJob,
    *states: WorkerState,
    running: int = 2,
    crash: Crash | None = None,
    problem: Problem | None = None,
    speed: float = 0.0,
    now_s: float = NOW_S,
) -> JobPage:
    """Show a run whose workers are in these states, as its page."""
    beats = {i: WorkerStatus(worker=i, incarnation=0, state=each, time_s=NOW_S) for i, each in enumerate(states)}
    pods = [Pod.of_process(Role.WORKER, index, started_s=NOW_S - 50) for index in range(running)]
    if crash:
        pods.append(Pod.of_process(Role.WORKER, 1, started_s=NOW_S - 50, crash=crash, ended=True))
    seen = Heartbeats(workers=beats, learner=LearnerStatus(session=1, frames=64, time_s=NOW_S))
    run.look(Processes(current=RUNS, pods=tuple(pods)), seen, now_s, problem=problem, frames_per_second=speed)
    return run.record.page()


CRASH = Crash(code=1, reason="", message="Traceback\nOSError: no display", finished_s=NOW_S)


@pytest.mark.parametrize(
    ("shown", "state", "reason", "ready"),
    [
        (look(run(), running=0), "Pending", "Starting", 0),
        (look(run(), WorkerState.STARTING), "Running", "Starting", 0),
        (look(run(), WorkerState.COLLECTING, WorkerState.WAITING_FOR_LEARNER), "Running", "Collecting", 2),
        (look(run(), WorkerState.WAITING_FOR_WEIGHTS), "Running", "WaitingForWeights", 1),
        (look(run(), WorkerState.COLLECTING, running=1, crash=CRASH), "Running", "WorkerCrashed", 1),
        (look(run(), problem=Problem("NatsUnavailable", "it ended")), "Running", "NatsUnavailable", 0),
        (look(run(), WorkerState.COLLECTING, now_s=NOW_S + 40), "Running", "WorkerStuck", 0),
    ],
)
def test_the_state_of_a_run_is_in_a_clusters_words(shown: JobPage, state: str, reason: str, ready: int) -> None:
    found = shown.row.diagnosis
    assert (found.state, found.reason, shown.status.workers.ready) == (state, reason, ready)
    assert found.is_problem == (reason in ("WorkerCrashed", "NatsUnavailable", "WorkerStuck"))


@pytest.mark.parametrize(
    ("verdict", "state", "advice"),
    [
        (Verdict(Stage.COMPLETE, "LearnerDone", "done"), "Complete", ""),
        (STOPPED, "Stopped", ""),
        (Verdict(Stage.FAILED, "Error", "no"), "Failed", ""),
        (
            Verdict(Stage.FAILED, "WorkerFailed", "worker 1 ended"),
            "Failed",
            "See `rollfleet logs runs/test/1 --worker 1`, fix it, and start the run again.",
        ),
    ],
)
def test_the_first_end_of_a_run_stays_and_is_its_last_moment(verdict: Verdict, state: str, advice: str) -> None:
    ended = run()
    look(ended, WorkerState.COLLECTING)
    ended.end(verdict, NOW_S)
    ended.end(STOPPED, NOW_S + 1)
    for _ in range(2):
        page = look(ended)
    assert (page.row.diagnosis.state, page.row.diagnosis.reason) == (state, verdict.reason)
    assert (page.row.diagnosis.advice, page.row.ended) == (advice, NOW_S)
    kinds = [each.kind for each in ended.record.timeline()]
    assert kinds == [Happened.CREATED, Happened.LEARNER_CONNECTED, str(page.row.phase)]


def test_a_run_whose_frames_flow_needs_no_advice() -> None:
    assert look(run(), WorkerState.WAITING_FOR_LEARNER).row.diagnosis.advice
    assert not look(run(), WorkerState.WAITING_FOR_LEARNER, speed=10.0).row.diagnosis.advice


def test_a_crash_is_a_moment_with_its_last_output() -> None:
    crashed = run()
    look(crashed, running=1, crash=CRASH)
    (moment,) = [each for each in crashed.record.timeline() if each.kind == Happened.WORKER_ENDED]
    assert (moment.text, moment.detail) == ("worker 1 ended with code 1: OSError: no display", CRASH.message)


def test_the_sentence_about_waits_has_the_newest_value_of_their_curve() -> None:
    waiting, pods = run(), (Pod.of_process(Role.WORKER, 0, started_s=NOW_S),)
    for second in range(50):  # heartbeats every other second; the learner waits ever longer
        beat_s = second // 2 * 2.0
        learner = LearnerStatus(session=1, time_s=NOW_S + beat_s, waited_s=beat_s**2 / 50)
        waiting.look(Processes(current=RUNS, pods=pods), Heartbeats(learner=learner), NOW_S + second)
    newest = waiting.record.history().series["learnerWait"][-1]
    assert newest
    sentence = waiting.record.page().status.bottleneck
    assert f"the learner waited {100 * newest:.0f} % of the last 30 s" in sentence
