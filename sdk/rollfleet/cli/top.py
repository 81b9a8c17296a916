"""What `rollfleet top` shows: the jobs of a cluster and, of one, its workers; live on a terminal."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollfleet.cli.kubectl_objects import JobView, PodView, age, one_line
from rollfleet.errors import KubectlFailed
from rollfleet_api.status import ConditionType, Phase

_STYLES = {Phase.FAILED: "red", Phase.COMPLETE: "green", Phase.RUNNING: "cyan"}


def jobs_table(jobs: Iterable[JobView]) -> Table:
    """A row for each job, by namespace and name."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("job", "phase"):
        table.add_column(column, no_wrap=True)
    for column in ("workers", "frames", "frames/s", "version", "lag", "dropped"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("last error")  # the only one that gives room away
    for job in sorted(jobs, key=lambda job: job.key):
        status = job.status
        table.add_row(
            Text(job.key),
            Text(status.phase or "Unknown", style=_STYLES.get(status.phase, "") if status.phase else "red"),
            f"{status.workers.ready}/{status.workers.desired}",
            amount_of_frames(job),
            f"{status.frames_per_second:,.0f}",
            version(job),
            lag(job),
            f"{status.batches.dropped:,}",
            Text(last_error(job), style="red", no_wrap=True, overflow="ellipsis"),
        )
    return table


def workers_table(shown: Sequence[PodView], pods: Iterable[PodView], now: datetime) -> Table:
    """A row for each pod.

    Args:
        shown: Those that get a row.
        pods: All of the job: those that failed before are counted.
        now: The time, for ages.
    """
    failed = Counter(pod.worker for pod in pods if pod.status.phase == "Failed")
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("worker", justify="right", no_wrap=True)
    for column in ("state", "node"):
        table.add_column(column, no_wrap=True)
    for column in ("crashes", "age"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("why")
    for pod in shown:
        table.add_row(
            "learner" if pod.worker is None else str(pod.worker),
            Text(pod.state, style="" if pod.state in ("Running", "Succeeded") else "yellow"),
            pod.spec.node_name or "-",
            str(failed[pod.worker]),
            age((now - pod.metadata.creation_timestamp).total_seconds()),
            Text(one_line(pod.message)),
        )
    return table


def newest_pods(pods: Iterable[PodView]) -> list[PodView]:
    """The newest pod of each worker, by index, and the learner's last."""
    newest: dict[int | None, PodView] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.creation_timestamp):
        newest[pod.worker] = pod
    return sorted(newest.values(), key=lambda pod: (pod.worker is None, pod.worker or 0))


def picture(jobs: Sequence[JobView], pods: Sequence[PodView] | None, now: datetime) -> RenderableType:
    """Jobs, and the workers of the one job where they were asked for."""
    if not jobs:
        return Text("no CollectorJobs here; --all-namespaces shows those of all namespaces")
    if pods is None:
        return jobs_table(jobs)
    missing = sum(job.status.workers.desired for job in jobs) - len({pod.worker for pod in pods} - {None})
    rest = [Text(f"{missing} workers have no pod")] if missing > 0 else []
    return Group(jobs_table(jobs), Text(), workers_table(newest_pods(pods), pods, now), *rest)


def show(console: Console, look: Callable[[], RenderableType], *, every_s: float) -> None:
    """Show what is seen, again and again until Ctrl-C; once where nobody watches.

    Raises:
        KubectlFailed: The first look failed. Later ones are told below the last picture: the cluster may come back.
    """
    seen = look()
    if not console.is_terminal:
        console.print(seen)
        return
    with Live(seen, console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            time.sleep(every_s)
            try:
                seen = look()
            except KubectlFailed as error:
                live.update(Group(seen, Text(), Text(one_line(str(error)), style="red")), refresh=True)
            else:
                live.update(seen, refresh=True)


def amount_of_frames(job: JobView) -> str:
    """Frames so far, and how many there are to be."""
    total = job.spec.collect.total_frames
    return f"{job.status.frames:,}" + (f"/{total:,}" if total else "")


def version(job: JobView) -> str:
    """The version that is published, and the oldest that a worker acts by."""
    published, applied = job.status.published_version, job.status.applied_version
    return f"{'-' if published is None else published}/{'-' if applied is None else applied}"


def lag(job: JobView) -> str:
    """How many versions the slowest worker is behind."""
    published, applied = job.status.published_version, job.status.applied_version
    return "-" if published is None or applied is None else str(max(published - applied, 0))


def last_error(job: JobView) -> str:
    """What is wrong now or, where nothing is, the last error of a worker."""
    wrong = job.held(ConditionType.FAILED) or job.held(ConditionType.DEGRADED)
    return one_line((wrong.message or wrong.reason) if wrong else job.status.last_error or "")
