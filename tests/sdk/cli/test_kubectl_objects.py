"""`top` and `describe` explain jobs from the objects that kubectl shows."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console, RenderableType

from rollfleet.cli.description import description
from rollfleet.cli.diagnosis import ADVICE, UNSEEN, diagnose, stale
from rollfleet.cli.kubectl_objects import EventView, JobView, PodView, age, one_line
from rollfleet.cli.top import jobs_table, last_error, newest_pods, overview, show, workers_table
from rollfleet.errors import KubectlFailed

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def condition(kind: str, status: str = "True", reason: str = "", message: str = "", since_s: float = 60) -> Any:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": ago(since_s),
    }


def job(name: str = "cartpole", *, generation: int = 1, **status: Any) -> JobView:
    return JobView.model_validate(
        {
            "metadata": {
                "name": name,
                "namespace": "lab",
                "uid": name,
                "generation": generation,
                "creationTimestamp": ago(7200),
            },
            "spec": {"workers": 2, "mode": "Sync", "collect": {"totalFrames": 100_000}, "fieldOfTomorrow": 1},
            "status": {"observedGeneration": 1, **status},
        },
        by_alias=True,
    )


def pod(index: int | None = 0, *, age_s: float = 60, node: str = "node-1", **status: Any) -> PodView:
    labels = {"rollfleet.dev/role": "learner" if index is None else "worker"}
    if index is not None:
        labels["batch.kubernetes.io/job-completion-index"] = str(index)
    return PodView.model_validate(
        {
            "metadata": {
                "name": f"pod-{index}-{age_s:g}",
                "uid": f"{index}-{age_s:g}",
                "creationTimestamp": ago(age_s),
                "labels": labels,
            },
            "spec": {"nodeName": node},
            "status": status,
        },
        by_alias=True,
    )


def crash(index: int, code: int, message: str, *, age_s: float) -> PodView:
    state = {"terminated": {"exitCode": code, "reason": "Error", "message": message}}
    return pod(index, age_s=age_s, phase="Failed", containerStatuses=[{"state": state}])


def waiting(index: int, reason: str, message: str) -> PodView:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(index, phase="Pending", containerStatuses=[{"state": state}])


def event(reason: str, message: str = "", *, kind: str = "Warning", age_s: float = 5) -> EventView:
    return EventView.model_validate(
        {
            "metadata": {"name": reason, "creationTimestamp": ago(age_s)},
            "involvedObject": {"kind": "Pod", "name": "pod-0", "uid": "0"},
            "type": kind,
            "reason": reason,
            "message": message,
            "lastTimestamp": ago(age_s),
        },
        by_alias=True,
    )


def text(seen: RenderableType, *, width: int = 300) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(seen)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


RUNNING: Any = {
    "phase": "Running",
    "workers": {"desired": 2, "ready": 1},
    "frames": 12_800,
    "framesPerSecond": 1234.5,
    "publishedVersion": 7,
    "appliedVersion": 5,
    "batches": {"delivered": 100, "dropped": 3},
    "conditions": [condition("Progressing", reason="Collecting", message="workers are collecting")],
}


def test_each_job_has_a_row_with_its_numbers() -> None:
    head, first, second = text(jobs_table([job(**RUNNING), job("ant")]))
    assert " ".join(head.split()) == "job phase workers frames frames/s version lag dropped last error"
    assert first.split() == ["lab/ant", "Unknown", "0/0", "0/100,000", "0", "-/-", "-", "0"]
    assert second.split() == ["lab/cartpole", "Running", "1/2", "12,800/100,000", "1,234", "7/5", "2", "3"]


def test_a_current_problem_is_shown_before_an_earlier_error() -> None:
    past: Any = {"lastError": "worker 0: it was raining"}
    degraded = condition("Degraded", reason="ImagePullFailed", message="worker 1 has no image")
    assert last_error(job(**past)) == "worker 0: it was raining"
    assert last_error(job(**past, conditions=[degraded])) == "worker 1 has no image"
    assert last_error(job(**past, conditions=[condition("Degraded", "False")])) == "worker 0: it was raining"


def test_only_a_long_error_is_cut_to_the_width_of_the_terminal() -> None:
    row = text(jobs_table([job(**RUNNING, lastError="x" * 500)]), width=120)[1]
    assert len(row) <= 120
    assert "12,800/100,000" in row
    assert row.endswith("…")


def test_control_characters_in_an_error_do_not_reach_the_terminal() -> None:
    evil = "line one\n\x1b[2J\x07[bold]line two[/bold]"
    row = text(jobs_table([job(lastError=evil)]))[1]
    assert "line one [2J[bold]line two[/bold]" in row
    assert one_line("\x1b]0;title\x07") == "]0;title"


def test_one_job_is_shown_with_its_workers_and_the_number_of_missing_pods() -> None:
    shown = "\n".join(text(overview([job(**RUNNING)], [pod(0, phase="Running")], NOW)))
    assert "lab/cartpole" in shown
    assert "node-1" in shown
    assert shown.endswith("1 workers have no pod")
    assert "worker" not in "\n".join(text(overview([job(**RUNNING)], None, NOW))[1:])


def test_an_empty_namespace_is_reported() -> None:
    assert "no CollectorJobs" in text(overview([], None, NOW))[0]


def test_each_worker_is_shown_by_its_newest_pod_and_its_number_of_crashes() -> None:
    pods = [
        crash(1, 1, "Traceback\nImportError: no module\n", age_s=300),
        crash(1, 137, "", age_s=200),
        pod(1, phase="Running"),
        pod(None, phase="Running"),
        pod(0, phase="Running", age_s=7300),
    ]
    rows = [line.split() for line in text(workers_table(newest_pods(pods), pods, NOW))[1:]]
    assert rows == [
        ["0", "Running", "node-1", "0", "2h"],
        ["1", "Running", "node-1", "2", "60s"],
        ["learner", "Running", "node-1", "0", "60s"],
    ]


def test_a_pod_that_does_not_run_says_why() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
    seen = [
        crash(0, 1, "Traceback\nImportError: no module\n", age_s=9),
        waiting(1, "ImagePullBackOff", "no such image"),
        pod(2, node="", phase="Pending", conditions=[unscheduled]),
        pod(3, phase="Pending"),
    ]
    assert [(each.state, each.message) for each in seen] == [
        ("Failed, code 1", "ImportError: no module"),
        ("ImagePullBackOff", "no such image"),
        ("Unschedulable", "0/4 nodes"),
        ("Pending", ""),
    ]


@pytest.mark.parametrize(
    ("conditions", "reason", "is_problem"),
    [
        ([condition("Failed", reason="Worst"), condition("Degraded", reason="WorkerCrashed")], "Worst", True),
        ([condition("Degraded", reason="Forbidden"), condition("Suspended", reason="Queued")], "Forbidden", True),
        ([condition("Complete", reason="TotalFrames"), condition("Degraded", "False")], "TotalFrames", False),
        ([condition("Suspended", reason="Suspended"), condition("Progressing", "False")], "Suspended", False),
        ([condition("Progressing", reason="Collecting"), condition("Ready")], "Collecting", False),
        ([], UNSEEN, True),
    ],
)
def test_the_worst_condition_is_the_reason(conditions: list[Any], reason: str, is_problem: bool) -> None:
    found = diagnose(job(conditions=conditions))
    assert (found.reason, found.is_problem) == (reason, is_problem)


def test_a_warning_event_is_the_reason_while_workers_are_missing() -> None:
    missing = [condition("Ready", "False", since_s=60), condition("Progressing", reason="Starting")]
    events = [
        event("FailedMount", "secret not found"),
        event("Older", age_s=30),
        event("Scheduled", kind="Normal", age_s=1),
    ]
    assert diagnose(job(conditions=missing), events).reason == "FailedMount"
    assert (
        diagnose(job(conditions=missing), [event("BackOff", age_s=90)]).reason == "Starting"
    )  # before they went missing
    assert diagnose(job(conditions=[condition("Ready"), missing[1]]), events).reason == "Starting"


def test_advice_names_the_job_and_the_worker() -> None:
    failed = condition("Failed", reason="TooManyRestarts", message="after 3 restarts worker 4 ended with code 1: no")
    assert "`rollfleet logs lab/cartpole --worker 4`" in diagnose(job(conditions=[failed])).advice
    assert "{" not in "".join(diagnose(job(conditions=[condition("Failed", reason=each)])).advice for each in ADVICE)


def test_a_change_that_no_operator_has_processed_is_reported() -> None:
    assert "generation 3, processed: 1" in stale(job(generation=3))
    assert stale(job()) == ""


def test_a_description_begins_with_the_reason_and_advice() -> None:
    degraded = condition("Degraded", reason="ImagePullFailed", message="worker 1 has no image: not found")
    pods = [pod(0, phase="Running"), waiting(1, "ErrImagePull", "not found")]
    events = [event("Late", "later", age_s=5), event("Early", "sooner", age_s=50)]
    changed = job(generation=2, **{**RUNNING, "conditions": [degraded]})
    lines = text(description(changed, pods, events, NOW))
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


@pytest.mark.parametrize(("seconds", "shown"), [(-1, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (200_000, "2d")])
def test_ages_are_short(seconds: float, shown: str) -> None:
    assert age(seconds) == shown


def test_top_keeps_the_last_output_while_the_cluster_is_away() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=10)
    answers: list[str | BaseException] = ["one", KubectlFailed(1, "connection refused"), "two", KeyboardInterrupt()]

    def read() -> str:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    with pytest.raises(KeyboardInterrupt):
        show(console, read, every_s=0)
    assert isinstance(console.file, io.StringIO)
    outputs = console.file.getvalue().split("\x1b[H")
    assert ["connection refused" in each for each in outputs if "one" in each][-1]
    assert "two" in outputs[-1]
    assert "refused" not in outputs[-1]


def test_top_prints_once_when_piped() -> None:
    console, reads = Console(file=io.StringIO()), iter(["only", "more"])
    show(console, lambda: next(reads), every_s=0)
    assert next(reads) == "more"
