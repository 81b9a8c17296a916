"""The output of `rollfleet top`: a table of a cluster's jobs; for a single job also its workers."""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollfleet.cluster.description import (
    amount_of_frames,
    evaluation,
    lag,
    mean_return,
    newest_pods,
    statistics_table,
    version,
    workers_table,
)
from rollfleet.errors import ClusterError
from rollfleet_api.pods import Pod
from rollfleet_api.status import ConditionType, Phase
from rollfleet_api.text import one_line
from rollfleet_api.views import JobView

_STYLES = {Phase.FAILED: "red", Phase.COMPLETE: "green", Phase.RUNNING: "cyan"}


def jobs_table(jobs: Iterable[JobView]) -> Table:
    """Build a table with a row for each job, sorted by namespace and name."""
    jobs = sorted(jobs, key=lambda job: job.key)
    evaluated = ["evaluation"] if any(job.status.evaluation for job in jobs) else []
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("job", "phase"):
        table.add_column(column, no_wrap=True)
    for column in ("workers", "frames", "frames/s", "return", *evaluated, "version", "lag", "dropped"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("last error")  # the only column that shrinks
    for job in jobs:
        status = job.status
        table.add_row(
            Text(job.key),
            Text(status.phase or "Unknown", style=_STYLES.get(status.phase, "") if status.phase else "red"),
            f"{status.workers.ready}/{status.workers.desired}",
            amount_of_frames(job),
            f"{status.frames_per_second:,.0f}",
            mean_return(job),
            *(evaluation(job) for _ in evaluated),
            version(job),
            lag(job),
            f"{status.batches.dropped:,}",
            Text(last_error(job), style="red", no_wrap=True, overflow="ellipsis"),
        )
    return table


def overview(
    jobs: Sequence[JobView], pods: Sequence[Pod] | None, now: datetime, *, all_namespaces: bool = False
) -> RenderableType:
    """Build the whole output: jobs and, where `pods` are given, the workers of the one job."""
    if not jobs:
        here = "in this namespace; --all-namespaces shows all namespaces"
        return Text(f"no CollectorJobs {'in any namespace' if all_namespaces else here}")
    if pods is None:
        return jobs_table(jobs)
    missing = sum(job.status.workers.desired for job in jobs) - len({pod.worker for pod in pods} - {None})
    rest: list[RenderableType] = [Text(f"{missing} workers have no pod")] if missing > 0 else []
    for job in jobs:
        if found := job.status.episode_statistics:
            rest += [Text(), statistics_table(found)]
    return Group(jobs_table(jobs), Text(), workers_table(newest_pods(pods), pods, now), *rest)


def show(console: Console, read: Callable[[], RenderableType], *, every_s: float) -> None:
    """Show what `read` returns, again and again until Ctrl-C; once when piped.

    Raises:
        ClusterError: The first read failed. Later failures are shown below the last output: the cluster may come back.
    """
    output = read()
    if not console.is_terminal:
        console.print(output)
        return
    with Live(output, console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            time.sleep(every_s)
            try:
                output = read()
            except ClusterError as error:
                live.update(Group(output, Text(), Text(one_line(str(error)), style="red")), refresh=True)
            else:
                live.update(output, refresh=True)


def last_error(job: JobView) -> str:
    """Return the job's current problem or, without one, the last error of a worker."""
    problem = job.status.held(ConditionType.FAILED) or job.status.held(ConditionType.DEGRADED)
    return one_line((problem.message or problem.reason) if problem else job.status.last_error or "")
