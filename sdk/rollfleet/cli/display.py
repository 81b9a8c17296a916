"""What `rollfleet run` shows: a live table on a terminal, plain lines elsewhere."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollfleet.cli.watch import JobWatch
from rollfleet_api.job import CollectorJob

REFRESH_S = 0.25
PLAIN_EVERY_S = 5.0


class Display:
    """Shows a run on a console.

    Args:
        console: Where. Lines of children and events go above the live table.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def showing(self, job: CollectorJob, watch: JobWatch) -> Iterator[None]:
        """Keep showing how the job goes, and once more at the end."""
        if self._console.is_terminal:
            # rich asks for the picture on a thread of its own, so that it moves while we wait for children.
            with Live(
                get_renderable=lambda: _table(job, watch), console=self._console, refresh_per_second=1 / REFRESH_S
            ):
                yield
            return
        over = threading.Event()
        printer = threading.Thread(target=self._print_lines, args=(job, watch, over), daemon=True)
        printer.start()
        try:
            yield
        finally:
            over.set()
            printer.join()
            self._line(_summary(job, watch))

    def output(self, who: str, line: str) -> None:
        """A line that a child wrote."""
        self._line(f"[{who}] {line}" if who != "learner" else line)

    def event(self, what: str) -> None:
        """Something that happened."""
        self._line(what, style="yellow")

    def error(self, what: str) -> None:
        """Something that went wrong."""
        self._line(what, style="red")

    def _print_lines(self, job: CollectorJob, watch: JobWatch, over: threading.Event) -> None:
        while not over.wait(PLAIN_EVERY_S):
            self._line(_summary(job, watch))

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def _summary(job: CollectorJob, watch: JobWatch) -> str:
    learner, name = watch.learner, job.metadata.name
    states = ", ".join(f"{index} {status.state}" for index, status in sorted(watch.workers.items())) or "none yet"
    if learner is None:
        return f"{name}: no batch yet; workers: {states}"
    return (
        f"{name}: {learner.frames:,} frames ({watch.frames_per_second():,.0f}/s), {learner.batches:,} batches, "
        f"mean return {_number(learner.mean_return)}, version {learner.version}, lag {learner.lag}, "
        f"dropped {learner.dropped}; workers: {states}" + "".join(f"; {each}" for each in watch.troubles().values())
    )


def _table(job: CollectorJob, watch: JobWatch) -> Group:
    learner = watch.learner
    head = Table.grid(padding=(0, 3))
    goal = f" of {job.spec.collect.total_frames:,}" if job.spec.collect.total_frames else ""
    head.add_row(
        Text(job.metadata.name, style="bold"),
        f"{learner.frames if learner else 0:,}{goal} frames",
        f"{watch.frames_per_second():,.0f} frames/s",
        f"{learner.batches if learner else 0:,} batches",
        f"mean return {_number(learner.mean_return if learner else None)}",
        f"version {learner.version if learner else 0}",
        f"lag {learner.lag if learner else 0}",
        f"dropped {learner.dropped if learner else 0}",
    )
    table = Table(box=None, padding=(0, 2))
    for column in ("worker", "state", "version", "frames", "frames/s", "mean return", "life"):
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
    return Group(head, table, *(Text(trouble, style="red") for trouble in watch.troubles().values()))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
