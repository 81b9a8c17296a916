"""Jobs with histories of any size, as a source of the page: what no test could wait for a real run to become."""

import math
import random
import time
from dataclasses import dataclass, field

from rollfleet_api.diagnosis import ADVICE, Diagnosis
from rollfleet_api.job import CollectorJobSpec
from rollfleet_api.status import CollectorJobStatus
from rollfleet_ui.history import JobHistory
from rollfleet_ui.model import Happened, History, JobPage, JobRow, Moment, ObjectRow, WorkerRow
from rollfleet_ui.rows import SKETCH_POINTS
from rollfleet_ui.source import Viewer
from rollfleet_ui.spec_text import defaulted, spec_text

SPEC = CollectorJobSpec.model_validate(
    {
        "env": {"id": "CartPole-v1", "numEnvs": 8},
        "policy": {"mlp": {"hidden": [64, 32]}},
        "collect": {"framesPerBatch": 2048, "totalFrames": 5_000_000},
        "mode": "Async",
    }
)
SPEC_TEXT, DEFAULTED = spec_text(SPEC), defaulted(SPEC)
EDIT = "--- before\n+++ after\n@@ -1,2 +1,2 @@\n-workers: 2\n+workers: 4\n mode: Async"


@dataclass(kw_only=True)
class MadeJob:
    """What the page shows of a job, and its logs by process and `previous`."""

    page: JobPage
    workers: list[WorkerRow]
    history: JobHistory
    logs: dict[tuple[str, bool], str] = field(default_factory=dict)


def made_job(
    name: str,
    *,
    namespace: str = "default",
    phase: str = "Running",
    reason: str = "",
    workers: int = 4,
    points: int = 300,
) -> MadeJob:
    """Make a job that has run for a second a point; a `reason` makes it a problem."""
    chance = random.Random(f"{namespace}/{name}")
    now_s = time.time()
    history = _history(chance, now_s - points, points, workers)
    series = history.series.points().series
    newest = {each: values[-1] for each, values in series.items() if values}
    rate = newest.get("framesPerSecond") or 0.0
    message = f"worker 3 of {name} exited with code 1" if reason else f"{workers} of {workers} workers are ready"
    diagnosis = Diagnosis(
        state=phase,
        reason=reason or "WorkersReady",
        message=message,
        advice=ADVICE[reason].format(job=f"{namespace}/{name}", worker=" --worker 3") if reason else "",
        is_problem=bool(reason),
    )
    ended = phase in ("Complete", "Failed")
    row = JobRow(
        key=f"{namespace}/{name}",
        namespace=namespace,
        name=name,
        phase=phase,
        diagnosis=diagnosis,
        workers_ready=0 if ended else workers - bool(reason),
        workers_desired=workers,
        frames=int(newest.get("frames") or 0),
        total_frames=SPEC.collect.total_frames,
        frames_per_second=0.0 if ended else rate,
        mean_return=newest.get("meanReturn"),
        returns=history.series.sketch("meanReturn", SKETCH_POINTS),
        published_version=int(newest.get("version") or 0) or None,
        applied_version=int(newest.get("version") or 0) - 1 or None,
        lag=int(newest.get("lag") or 0),
        created=now_s - points,
        ended=now_s if ended else None,
    )
    page = JobPage(
        row=row,
        status=CollectorJobStatus(
            bottleneck="The learner is the bottleneck: workers waited 63 % of the last 30 s for it."
        ),
        spec=SPEC_TEXT,
        defaulted=DEFAULTED,
        objects=[
            ObjectRow(kind="Pod", name=f"{name}-worker-{index}", state="Running") for index in range(min(workers, 8))
        ],
    )
    return MadeJob(
        page=page,
        workers=[*(_worker(chance, row, index, rate / workers) for index in range(workers)), _learner(row)],
        history=history,
        logs={(f"worker {index}", False): f"worker {index} collects\n" for index in range(workers)}
        | {("learner", False): "learner trains\n"},
    )


class MadeJobs:
    """Jobs in memory, as a `rollfleet_ui.source.Source`."""

    def __init__(self, *jobs: MadeJob) -> None:
        self.made = {job.page.row.key: job for job in jobs}
        self.asked = 0

    def change(self, key: str, **changes: object) -> None:
        made = self.made[key]
        made.page = made.page.model_copy(update={"row": made.page.row.model_copy(update=changes)})

    def remove(self, key: str) -> None:
        del self.made[key]

    def jobs(self) -> dict[str, "Shown"]:
        self.asked += 1
        return {key: Shown(made) for key, made in self.made.items()}

    async def logs(self, key: str, process: str, *, previous: bool, tail: int, viewer: Viewer) -> str:
        try:
            return "\n".join(self.made[key].logs[process, previous].splitlines()[-tail:])
        except KeyError:
            raise LookupError("there is no such log") from None


class Shown:
    """A made job as a `rollfleet_ui.source.ShownJob`."""

    def __init__(self, made: MadeJob) -> None:
        self._made = made

    @property
    def row(self) -> JobRow:
        return self._made.page.row

    def page(self) -> JobPage:
        return self._made.page

    def workers(self) -> list[WorkerRow]:
        return self._made.workers

    def history(self) -> History:
        return self._made.history.series.points()

    def timeline(self) -> list[Moment]:
        return self._made.history.moments


def _history(chance: random.Random, began_s: float, points: int, workers: int) -> JobHistory:
    history = JobHistory()
    frames, rate, pace = 0.0, chance.uniform(2_000, 20_000), chance.uniform(3, 9)
    for at in range(points):
        part = at / max(points - 1, 1)
        away = 0.45 < part < 0.5
        speed = 0.0 if away else rate * chance.uniform(0.93, 1.05)
        frames += speed
        solved = 20 + 460 / (1 + math.exp(-pace * (part - 0.4) * 2))
        history.series.add(
            began_s + at,
            {
                "frames": frames,
                "framesPerSecond": speed,
                "meanReturn": None if part < 0.03 else solved * chance.uniform(0.93, 1.0),
                "episodes": at * 12,
                "max.return": 500.0,
                "mean.last_version": at // 3,
                **{f"{name}.success": value for name, value in (("mean", part), ("min", 0.0), ("max", 1.0))},
                "version": at // 2,
                "lag": chance.choice((0, 0, 1, 1, 2)),
                "workersReady": 0 if part < 0.02 else workers - (0.6 < part < 0.66),
                "learnerWait": 0.95 if away else 0.12 * chance.uniform(0.6, 1.2),
                "workersWaitLearner": 0.0 if away else (0.3 + 0.35 * part) * chance.uniform(0.9, 1.05),
                "workersWaitWeights": 0.1 * chance.uniform(0.5, 1.3),
            },
        )
    for part, kind, text, detail in (
        (0.0, Happened.CREATED, f"created with {workers} workers", ""),
        (0.1, Happened.VERSION, f"versions 1 to {points // 4}", ""),
        (0.2, Happened.EDITED, "edited: workers", EDIT),
        (0.45, Happened.NATS_AWAY, "NATS does not answer", ""),
        (0.5, Happened.NATS_BACK, "NATS answers again", ""),
        (0.6, Happened.WORKER_ENDED, "worker 3 ended: killed by SIGKILL", "Traceback\n  killed"),
        (0.66, Happened.WORKER_BACK, "worker 3 is back as incarnation 1", ""),
    ):
        history.note(began_s + part * points, kind, text, detail)
    return history


def _worker(chance: random.Random, row: JobRow, index: int, rate: float) -> WorkerRow:
    failed = row.diagnosis.is_problem and index == 3
    return WorkerRow(
        process=f"worker {index}",
        index=index,
        state="Failed"
        if failed
        else "Complete"
        if row.ended
        else chance.choice(("Collecting",) * 4 + ("WaitingForLearner",)),
        incarnation=1 if index == 3 else 0,
        version=row.applied_version,
        lag=1,
        frames=row.frames // row.workers_desired,
        frames_per_second=0.0 if failed or row.ended else rate * chance.uniform(0.7, 1.1),
        mean_return=row.mean_return,
        restarts=1 if index == 3 else 0,
        node=f"node-{index % 7}",
        last_error="RuntimeError: the environment sent NaN" if failed else "",
        has_previous=index == 3,
        since=row.created,
    )


def _learner(row: JobRow) -> WorkerRow:
    return WorkerRow(
        process="learner",
        state="Complete" if row.ended else "Running",
        incarnation=1,
        version=row.published_version,
        lag=row.lag,
        frames=row.frames,
        frames_per_second=row.frames_per_second,
        mean_return=row.mean_return,
        node="node-0",
        gpus=1,
        since=row.created,
    )
