"""The output of `rollfleet describe`: the state and its reason first, then counters, pods, conditions and events."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollfleet.cli.diagnosis import diagnose, stale
from rollfleet.cli.kubectl_objects import EventView, JobView, PodView, age, one_line
from rollfleet.cli.top import amount_of_frames, lag, newest_pods, version, workers_table

NEWEST_EVENTS = 10


def description(job: JobView, pods: Sequence[PodView], events: Sequence[EventView], now: datetime) -> Group:
    """Build the whole output.

    Args:
        job: The job.
        pods: The pods of its workers and its learner.
        events: Events about the job and its pods.
        now: The current time, for ages.
    """
    parts: list[RenderableType] = [*_reason(job, events), Text(), _counters(job, now)]
    not_running = [pod for pod in newest_pods(pods) if pod.state not in ("Running", "Succeeded")]
    if not_running:
        parts += [Text(), Text("Pods that are not running", style="bold"), workers_table(not_running, pods, now)]
    if job.status.conditions:
        parts += [Text(), Text("Conditions", style="bold"), _conditions(job, now)]
    if events:
        parts += [Text(), Text("Events", style="bold"), _events(events, now)]
    return Group(*parts)


def _reason(job: JobView, events: Sequence[EventView]) -> Iterator[Text]:
    found = diagnose(job, events)
    style = "bold red" if found.is_problem else "bold"
    reason = f" ({found.reason})" if found.reason else ""
    yield Text(f"{job.key} is {found.state}{reason}", style=style)
    yield from (Text(one_line(line)) for line in (found.message, found.advice, stale(job)) if line)


def _counters(job: JobView, now: datetime) -> Table:
    status = job.status
    table = Table.grid(padding=(0, 3))
    rows = {
        "Mode": job.spec.mode,
        "Workers": f"{status.workers.ready} of {status.workers.desired} ready, {status.restarts} restarts",
        "GPUs": str(status.gpus),
        "Frames": f"{amount_of_frames(job)}, {status.frames_per_second:,.0f}/s",
        "Version": f"{version(job)}, lag {lag(job)}",
        "Batches": f"{status.batches.delivered:,} delivered, {status.batches.dropped:,} dropped",
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
    for each in sorted(events, key=lambda event: event.time)[-NEWEST_EVENTS:]:
        subject = f"{each.involved_object.kind.lower()}/{each.involved_object.name}"
        style = "red" if each.type == "Warning" else ""
        since = age((now - each.time).total_seconds())
        table.add_row(since, Text(each.reason, style=style), Text(subject), Text(one_line(each.message)))
    return table
