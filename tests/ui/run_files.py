"""Saved runs on disk, as `rollfleet run --ui` writes them."""

import time
from pathlib import Path

from rollfleet_api.diagnosis import Diagnosis
from rollfleet_api.status import CollectorJobStatus, Phase, WorkersStatus
from rollfleet_ui.history import JobHistory
from rollfleet_ui.model import Happened, JobPage, JobRow, WorkerRow
from rollfleet_ui.saved_runs import SavedRun

ENDED_S = 1_700_000_100.0


def write_run(
    runs: Path,
    name: str,
    number: str = "1",
    *,
    namespace: str = "default",
    frames: int = 0,
    ended: bool = True,
    created_s: float = 1_700_000_000.0,
) -> Path:
    """Write a run of two workers into `runs/NAME/NUMBER`, or write it again. Returns its folder."""
    history = JobHistory()
    history.note(1_700_000_000.0, Happened.CREATED, "created")
    history.series.add(1_700_000_000.0, {"frames": frames})
    row = JobRow(
        key=f"{namespace}/{name}",
        namespace=namespace,
        name=name,
        phase="Complete" if ended else "Running",
        diagnosis=Diagnosis(state="Complete" if ended else "Running"),
        frames=frames,
        frames_per_second=100.0,
        created=created_s,
        ended=ENDED_S if ended else None,
    )
    status = CollectorJobStatus(
        phase=Phase.COMPLETE if ended else Phase.RUNNING,
        frames=frames,
        workers=WorkersStatus(desired=2, ready=2),
        bottleneck="The learner is the bottleneck.",
    )
    page = JobPage(row=row, status=status, spec="workers: 2")
    workers = [
        WorkerRow(process=f"worker {index}", index=index, state="Collecting", since=time.time()) for index in (0, 1)
    ]
    workers.append(WorkerRow(process="learner", state="Connected"))
    run = SavedRun(page=page, workers=workers, history=history.series.points(), timeline=history.moments)
    run.write(runs / name / number)
    return runs / name / number
