"""Saved runs of this machine for the commands about jobs. One is named by a folder, the newest run in it counts."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import yaml

from rollfleet.cluster.description import Description
from rollfleet.errors import RollfleetError
from rollfleet.system.cpus import available_cpus
from rollfleet_api.times import format_time
from rollfleet_api.views import EventView, JobView
from rollfleet_ui.saved_runs import SavedJob, SavedRuns


def runs_in(name: str) -> list[SavedJob]:
    """Return the saved runs in a folder, the oldest first; empty: there is no such folder, or it has no runs."""
    found = _runs(Path(name)).jobs().values() if Path(name).is_dir() else ()
    return sorted(found, key=lambda run: run.row.created)


_runs = cache(SavedRuns)  # each reads again what has changed


def view(run: SavedJob) -> JobView:
    """Return a run as a cluster would show it."""
    row, page = run.row, run.page()
    status = page.status
    if run.is_cut:
        status = status.model_copy(
            update={"phase": None, "last_error": row.diagnosis.message, "frames_per_second": 0.0}
        )
    metadata = {"name": row.name, "namespace": row.namespace, "creationTimestamp": format_time(row.created)}
    return JobView.model_validate({"metadata": metadata, "spec": yaml.safe_load(page.spec) or {}, "status": status})


def described(run: SavedJob) -> Description:
    """Return the description of a run: its processes are the pods, its timeline has the events."""
    events = [
        EventView.model_validate(
            {
                "metadata": {"name": moment.kind, "creationTimestamp": format_time(moment.time)},
                "involvedObject": {"kind": "Run", "name": run.row.name},
                "reason": moment.kind,
                "message": moment.text,
            }
        )
        for moment in run.timeline()
    ]
    now = datetime.now(UTC)
    return Description(
        job=view(run),
        pods=run.pods(),
        events=tuple(events),
        time=now,
        known=run.row.diagnosis,
        machine_cpus=available_cpus(),
    )


def log_of(run: SavedJob, *, worker: int | None, learner: bool, tail: int | None) -> Iterator[str]:
    """Yield the saved lines of a run's processes, each with its process.

    Raises:
        RollfleetError: The log was not saved.
    """
    wanted = "learner" if learner else None if worker is None else f"worker {worker}"
    names = [row.process for row in run.workers() if wanted in (None, row.process)]
    found = {name: run.log(name) for name in names}
    if not any(text is not None for text in found.values()):
        raise RollfleetError(f"no log of {wanted or 'a process'} is saved in {run.folder}")
    for name, text in found.items():
        lines = (text or "").splitlines()
        yield from (f"[{name}] {line}" for line in (lines if tail is None else lines[max(len(lines) - tail, 0) :]))
