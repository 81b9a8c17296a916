"""The tables of `rollfleet top`."""

import io
from typing import Any

import pytest
from rich.console import Console
from tests.sdk.cluster.objects import NOW, RUNNING, condition, job, pod, text

from rollfleet.cli.top import jobs_table, last_error, overview, show
from rollfleet.errors import ClusterError
from rollfleet_api.text import one_line


def test_each_job_has_a_row_with_its_numbers() -> None:
    head, first, second = text(jobs_table([job(**RUNNING, meanReturn=-142.5), job("ant")]))
    assert " ".join(head.split()) == "job phase workers frames frames/s return version lag dropped last error"
    assert first.split() == ["lab/ant", "Unknown", "0/0", "0/100,000", "0", "-", "-/-", "-", "0"]
    assert second.split() == ["lab/cartpole", "Running", "1/2", "12,800/100,000", "1,234", "-142.5", "7/5", "2", "3"]


def test_the_newest_evaluation_has_a_column_once_a_job_has_one() -> None:
    evaluated = job("ant", evaluation={"version": 40, "meanReturn": 101.5, "episodes": 10})
    head, first, second = text(jobs_table([job(), evaluated]))
    assert " ".join(head.split()).startswith("job phase workers frames frames/s return evaluation version")
    assert "101.5 at version 40" in first
    assert "at version" not in second


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
    assert "--all-namespaces" in text(overview([], None, NOW))[0]
    assert text(overview([], None, NOW, all_namespaces=True))[0].strip() == "no CollectorJobs in any namespace"


def test_top_keeps_the_last_output_while_the_cluster_is_away() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=10)
    answers: list[str | BaseException] = [
        "one",
        ClusterError("connection refused", 0, "Unreachable"),
        "two",
        KeyboardInterrupt(),
    ]

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
