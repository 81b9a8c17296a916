"""A job explained: the state and its reason first, then counters, pods, conditions and events."""

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollfleet_api.crowding import crowding
from rollfleet_api.diagnosis import Diagnosis, diagnose, stale
from rollfleet_api.messages import Statistic
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.status import EpisodeStatistic
from rollfleet_api.text import one_line
from rollfleet_api.views import EventView, JobView, age

NEWEST_EVENTS: Final = 10
_LEARNER_RESTARTS: Final = (
    "starts again at an edit of learner, image, env, policy, source, catResults, trajFormat, precision or scheme; "
    "follows all others"
)
WIDTH: Final = 2000
"""Columns of text for a pipe or file: wide enough to cut no line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A job with its pods and events. `str()` is the text of `rollfleet describe`.

    Attributes:
        job: The job, with the status that the operator wrote.
        pods: The pods of its workers and its learner.
        events: Events about the job and its pods, the newest last.
        time: When they were read, for ages.
        known: The diagnosis of a run of this machine, which was saved with it; None: of a cluster's job.
        machine_cpus: The CPUs of this machine, for a run on it; None: of a cluster's job.
    """

    job: JobView
    pods: tuple[Pod, ...]
    events: tuple[EventView, ...]
    time: datetime
    known: Diagnosis | None = None
    machine_cpus: int | None = None

    @property
    def diagnosis(self) -> Diagnosis:
        """The job's state, its reason, and what to do."""
        return self.known or diagnose(self.job, self.events)

    def __str__(self) -> str:
        """Return the text of `rollfleet describe`."""
        console = Console(file=io.StringIO(), width=WIDTH, highlight=False)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def __rich__(self) -> Group:
        """Return the same for a terminal."""
        job, now = self.job, self.time
        parts: list[RenderableType] = [*_reason(job, self.diagnosis), Text()]
        parts.append(_counters(job, self.pods, now, crowding(job.spec, self.machine_cpus)))
        if job.status.episode_statistics:
            parts += [Text(), statistics_table(job.status.episode_statistics)]
        not_running = [pod for pod in newest_pods(self.pods) if pod.state not in ("Running", "Succeeded")]
        if not_running:
            title = Text("Pods that are not running", style="bold")
            parts += [Text(), title, workers_table(not_running, self.pods, now)]
        if job.status.conditions:
            parts += [Text(), Text("Conditions", style="bold"), _conditions(job, now)]
        if self.events:
            parts += [Text(), Text("Events", style="bold"), _events(self.events, now)]
        return Group(*parts)


def workers_table(shown: Sequence[Pod], pods: Iterable[Pod], now: datetime) -> Table:
    """Build a table of the pods in `shown`. `pods` are all of the job: those that count as restarts are crashes."""
    failed = Counter(pod.process for pod in pods if pod.counts)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("worker", justify="right", no_wrap=True)
    for column in ("state", "node"):
        table.add_column(column, no_wrap=True)
    for column in ("crashes", "age"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("reason")
    for pod in shown:
        table.add_row(
            pod.process.removeprefix("worker "),
            Text(pod.state, style="" if pod.state in ("Running", "Succeeded") else "yellow"),
            pod.node or "-",
            str(failed[pod.process]),
            age(now.timestamp() - pod.created_s),
            Text(one_line(pod.message)),
        )
    return table


def statistics_table(found: Mapping[str, EpisodeStatistic | Statistic]) -> Table:
    """Build a table of the numbers of a job's last episodes."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("last 100 episodes")
    for column in ("mean", "min", "max", "count"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, each in found.items():
        table.add_row(Text(one_line(name)), f"{each.mean:.4g}", f"{each.min:.4g}", f"{each.max:.4g}", str(each.count))
    return table


def newest_pods(pods: Iterable[Pod]) -> list[Pod]:
    """Return the newest pod of each worker, by index, then of each other process, then of the learner."""
    newest: dict[str, Pod] = {}
    for pod in sorted(pods, key=lambda pod: pod.created_s):
        newest[pod.process] = pod
    return sorted(newest.values(), key=lambda pod: (pod.worker is None, pod.role is Role.LEARNER, pod.role, pod.index))


def amount_of_frames(job: JobView) -> str:
    """Format the frames so far and the job's total."""
    total = job.spec.collect.total_frames
    return f"{job.status.frames:,}" + (f"/{total:,}" if total else "")


def mean_return(job: JobView) -> str:
    """Format the mean return of the last episodes."""
    return "-" if job.status.mean_return is None else f"{job.status.mean_return:g}"


def evaluation(job: JobView) -> str:
    """Format the newest evaluation; empty: no evaluation yet."""
    found = job.status.evaluation
    if found is None or found.mean_return is None:
        return ""
    return f"{found.mean_return:g} at version {found.version}"


def version(job: JobView) -> str:
    """Format the published version and the oldest version that a worker acts on."""
    published, applied = job.status.published_version, job.status.applied_version
    return f"{'-' if published is None else published}/{'-' if applied is None else applied}"


def lag(job: JobView) -> str:
    """Format the lag of the slowest worker, in versions."""
    return "-" if job.lag is None else str(job.lag)


def _reason(job: JobView, found: Diagnosis) -> Iterator[Text]:
    style = "bold red" if found.is_problem else "bold"
    reason = f" ({found.reason})" if found.reason else ""
    yield Text(f"{job.key} is {found.state}{reason}", style=style)
    yield from (Text(one_line(line)) for line in (found.message, found.advice, stale(job)) if line)


def _counters(job: JobView, pods: Iterable[Pod], now: datetime, crowded: str) -> Table:
    status, waits = job.status, job.status.waits
    servers = [f"{pod.state} on {pod.node or 'no node'}" for pod in newest_pods(pods) if pod.role is Role.NATS]
    failed = ", ".join(f"{n:,} by {error}" for error, n in status.failed_episodes.items())
    table = Table.grid(padding=(0, 3))
    rows = {
        "Mode": job.spec.mode,
        "Workers": f"{status.workers.ready} of {status.workers.desired} ready, {status.restarts} restarts",
        "Servers": f"{status.servers.ready} of {status.servers.desired} ready" if status.servers else "",
        "CPUs": crowded,
        "GPUs": str(status.gpus),
        "Frames": f"{amount_of_frames(job)}, {status.frames_per_second:,.0f}/s",
        "Return": f"{mean_return(job)}, {status.episodes:,} episodes",
        "Evaluation": evaluation(job),
        "Version": f"{version(job)}, lag {lag(job)}",
        "Settings": f"version {status.env_version:,} of the environments' settings" if status.env_version else "",
        "Batches": f"{status.batches.delivered:,} delivered, {status.batches.dropped:,} dropped",
        "Failed episodes": one_line(failed),
        "Newest failure": f"{one_line(newest)}; the worker's log has the traceback of the first one"
        if (newest := status.newest_failure)
        else "",
        "NaN, infinity": f"{status.non_finite:,} frames and versions" if status.non_finite else "",
        "Waits": f"learner {age(waits.learner_seconds)} for data; workers {age(waits.workers_for_learner_seconds)} "
        f"for the learner, {age(waits.workers_for_weights_seconds)} for weights, "
        f"{age(waits.workers_for_environments_seconds)} for environments",
        "Bottleneck": one_line(status.bottleneck),
        "NATS": "".join(servers),
        "Learner": _LEARNER_RESTARTS if job.spec.learner is not None else "",
        "Last error": one_line(status.last_error or ""),
        "Age": age((now - job.metadata.creation_timestamp).total_seconds()),
    }
    for name, value in rows.items():
        if value:
            table.add_row(Text(name, style="bold"), Text(value))
    return table


def _conditions(job: JobView, now: datetime) -> Table:
    table = Table.grid(padding=(0, 3))
    for each in job.status.conditions:
        changed = each.last_transition_time
        since = age((now - datetime.fromisoformat(changed)).total_seconds()) if changed else ""
        table.add_row(each.type, each.status, since, each.reason, Text(one_line(each.message)))
    return table


def _events(events: Sequence[EventView], now: datetime) -> Table:
    table = Table.grid(padding=(0, 3))
    for each in events[-NEWEST_EVENTS:]:
        subject = f"{each.involved_object.kind.lower()}/{each.involved_object.name}"
        style = "red" if each.type == "Warning" else ""
        since = age((now - each.time).total_seconds())
        table.add_row(since, Text(each.reason, style=style), Text(subject), Text(one_line(each.message)))
    return table
