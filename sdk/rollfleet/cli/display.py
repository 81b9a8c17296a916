"""The output of `rollfleet run`: a live table on a terminal, plain lines when piped."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollfleet.cli.watch import JobWatch
from rollfleet.cluster.description import statistics_table
from rollfleet_api.messages import LearnerStatus, WorkerState

REFRESH_S = 0.25
PLAIN_EVERY_S = 5.0


class Display:
    """Shows a run on a console. Lines of child processes and events appear above the live table."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._summary = ""  # the newest that was shown
        self._has_output = False

    @contextmanager
    def showing(self, watch: JobWatch, *, has_output: bool = False) -> Iterator[None]:
        """Show a job's progress until the block ends, and once more at the end.

        With `has_output` the workers' output is shown, too, and the progress does not repeat their errors.
        """
        self._has_output = has_output
        if self._console.is_terminal:
            # A thread of rich renders the table, so that it is refreshed while this thread waits for child processes.
            with Live(
                get_renderable=lambda: _table(watch, self._problems(watch)),
                console=self._console,
                refresh_per_second=1 / REFRESH_S,
            ):
                yield
            return
        ended = threading.Event()
        printer = threading.Thread(target=self._print_lines, args=(watch, ended), daemon=True)
        printer.start()
        try:
            yield
        finally:
            ended.set()
            printer.join()
            self._summarise(watch)

    def output(self, process: str, line: str) -> None:
        """Show a line of output of a child process; not of a worker's bad input, which its end repeats."""
        if not line.startswith("CRITICAL rollfleet.cli.worker_program: "):
            self._line(f"[{process}] {line}" if process != "learner" else line)

    def event(self, text: str) -> None:
        """Show an event."""
        self._line(text, style="yellow")

    def error(self, text: str) -> None:
        """Show an error."""
        self._line(text, style="red")

    def _print_lines(self, watch: JobWatch, ended: threading.Event) -> None:
        while not ended.wait(PLAIN_EVERY_S):
            self._summarise(watch)

    def _summarise(self, watch: JobWatch) -> None:
        summary = "; ".join([_summary(watch), *self._problems(watch)])
        if summary != self._summary:
            self._line(summary)
        self._summary = summary

    def _problems(self, watch: JobWatch) -> list[str]:
        workers = watch.workers
        return [
            problem
            for index, problem in watch.problems().items()
            if not (self._has_output and workers[index].state is WorkerState.FAILED)
        ]

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def _summary(watch: JobWatch) -> str:
    learner, name = watch.learner, watch.job.metadata.name
    states = ", ".join(f"{index} {status.state}" for index, status in sorted(watch.workers.items())) or "none yet"
    if learner is None:
        return f"{name}: no batch yet; workers: {states}"
    return (
        f"{name}: {learner.frames:,} frames ({_speed(watch)}), {learner.batches:,} batches, "
        f"mean return {_number(learner.mean_return)}{_evaluation(learner)}, version {learner.version}, "
        f"lag {learner.lag}, dropped {learner.dropped}; workers: {states}"
    )


def _speed(watch: JobWatch) -> str:
    """Return frames per second: those of the last seconds, and at the end the mean."""
    if all(each.state is WorkerState.COMPLETE for each in watch.workers.values()) and watch.mean_frames_per_second:
        return f"{watch.mean_frames_per_second:,.0f}/s on average"
    return f"{watch.frames_per_second:,.0f}/s"


def _table(watch: JobWatch, problems: list[str]) -> Group:
    job, learner = watch.job, watch.learner or LearnerStatus(session=0)
    head = Table.grid(padding=(0, 3))
    goal = f" of {job.spec.collect.total_frames:,}" if job.spec.collect.total_frames else ""
    head.add_row(
        Text(job.metadata.name, style="bold"),
        f"{learner.frames:,}{goal} frames",
        _speed(watch),
        f"{learner.batches:,} batches",
        f"mean return {_number(learner.mean_return)}{_evaluation(learner)}",
        f"version {learner.version}",
        f"lag {learner.lag}",
        f"dropped {learner.dropped}",
    )
    table = Table(box=None, padding=(0, 2))
    for column in ("worker", "state", "version", "frames", "frames/s", "mean return", "starts"):
        table.add_column(column, justify="left" if column == "state" else "right")
    for index, status in sorted(watch.workers.items()):
        table.add_row(
            str(index),
            Text(status.state, style="red" if status.error else ""),
            str(status.version),
            f"{status.frames:,}",
            f"{status.frames_per_second:,.0f}",
            _number(status.mean_return),
            str(status.incarnation + 1),
        )
    said = [statistics_table(learner.episode_statistics)] if learner.episode_statistics else []
    return Group(head, table, *said, *(Text(problem, style="red") for problem in problems))


def _evaluation(learner: LearnerStatus) -> str:
    found = learner.evaluation
    return f", evaluated {_number(found.mean_return)} at version {found.version}" if found else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
