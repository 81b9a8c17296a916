"""A run on this machine as a source of the page. It is saved into a folder while it goes on."""

import asyncio
import platform
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rollfleet.cli.local_status import STOPPED, Seen, condition, diagnosis, job_view, ready
from rollfleet.cli.log_tail import LogTail
from rollfleet.cli.watch import JobWatch
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.status import Condition, ConditionType
from rollfleet_ui.historian import Historian
from rollfleet_ui.history import JobHistory
from rollfleet_ui.model import Happened, History, JobPage, JobRow, Moment, ObjectRow, WorkerRow
from rollfleet_ui.rows import SKETCH_POINTS, job_row, learner_row, worker_row
from rollfleet_ui.saved_runs import SavedRun, write_log
from rollfleet_ui.source import Viewer
from rollfleet_ui.spec_text import defaulted, spec_text
from rollfleet_ui.views import JobView, one_line

LOOK_S: Final = 0.5
SAVE_S: Final = 10.0
NATS: Final = "nats-server"
LEARNER: Final = "learner"


def worker_name(worker: int | None) -> str:
    """Return the name of a worker's process; None: the learner's."""
    return LEARNER if worker is None else f"worker {worker}"


@dataclass(slots=True)
class _Process:
    """A process of the run.

    Attributes:
        pid: Its process id; that of its newest start.
        since_s: When it started.
        starts: How often it was started.
        ended: How it ended. None: it runs.
        log: Its output.
        previous: The output of the start before.
    """

    pid: int
    since_s: float
    starts: int = 1
    ended: str | None = None
    log: LogTail = field(default_factory=LogTail)
    previous: LogTail | None = None


class LiveRun:
    """A run, its history, and the output of its processes.

    Args:
        job: The job.
        runs: The folder of all saved runs.
        warn: Takes a line about a file that cannot be written.

    Attributes:
        folder: The folder of this run.

    Example:
        >>> live = LiveRun(job, Path("runs"), print)  # doctest: +SKIP
        >>> code = await live.until_end(watch, children.run())  # doctest: +SKIP
    """

    def __init__(self, job: CollectorJob, runs: Path, warn: Callable[[str], None]) -> None:
        self._job, self._warn = job, warn
        self._started_s = time.time()
        self.folder = _free(runs / job.metadata.name / time.strftime("%Y%m%d-%H%M%S"))
        self._history = JobHistory()
        self._historian = Historian(self._history)
        self._watch: JobWatch | None = None
        self._processes: dict[str, _Process] = {}
        self._last_error = ""
        self._ended: Condition | None = None
        self._ended_s: float | None = None
        self._spec = spec_text(job.spec)
        workers = job.spec.workers
        text = f"started on this machine with {workers} worker{'s' if workers != 1 else ''}"
        self._history.note(self._started_s, Happened.CREATED, text)

    # --- what the run reports ---

    def started(self, process: str, pid: int) -> None:
        """Note that a process was started."""
        before = self._processes.get(process)
        if before is None:
            self._processes[process] = _Process(pid, time.time())
            return
        before.pid, before.since_s, before.starts, before.ended = pid, time.time(), before.starts + 1, None
        before.log, before.previous = LogTail(), before.log
        before.previous.is_saved = False
        if process == NATS:
            self._history.note(time.time(), Happened.NATS_BACK, "nats-server is back")

    def output(self, process: str, line: str) -> None:
        """Keep a line of a process's output."""
        if found := self._processes.get(process):
            found.log.add(line)

    def ended(self, process: str, text: str) -> None:
        """Note how a process ended; an empty text: in order."""
        found = self._processes.get(process)
        if found is None:
            return
        found.ended = text
        if process == NATS:
            self._history.note(time.time(), Happened.NATS_AWAY, text)
        elif text:
            self._last_error = one_line(text)
            self._history.note(time.time(), Happened.WORKER_ENDED, self._last_error, found.log.text(20))

    def failed(self, reason: str, text: str) -> None:
        """Note why the run fails."""
        self._end(ConditionType.FAILED, reason, text)

    async def until_end(self, watch: JobWatch, run: Coroutine[Any, Any, int]) -> int:
        """Wait for a run, follow it, and save it. Returns its exit code."""
        self._watch = watch
        following = asyncio.create_task(self._follow())
        try:
            code = await run
            self._end(ConditionType.COMPLETE, "LearnerDone", "the learner has finished")
            return code
        except asyncio.CancelledError:
            self._end(ConditionType.SUSPENDED, STOPPED, "the run was stopped by Ctrl-C or SIGTERM")
            raise
        except Exception as error:
            self._end(ConditionType.FAILED, "Error", str(error))
            raise
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            self._look()
            self._save()

    # --- what the page shows ---

    def jobs(self) -> "Mapping[str, LiveRun]":
        """Return the run by its key; see `Source`, and `ShownJob` for the methods below."""
        return {self._job.key: self}

    @property
    def row(self) -> JobRow:
        """Its row."""
        view = self._view()
        return job_row(view, diagnosis(view), self._history.series.sketch("meanReturn", SKETCH_POINTS))

    def page(self) -> JobPage:
        """Return all of the run."""
        view = self._view()
        return JobPage(
            row=self.row,
            diagnosis=diagnosis(view),
            bottleneck=self._historian.bottleneck(),
            status=view.status,
            spec=self._spec,
            defaulted=defaulted(self._job.spec),
            objects=[
                ObjectRow(
                    kind="Process",
                    name=name,
                    state=f"pid {each.pid}" if each.ended is None and not self._ended else "ended",
                )
                for name, each in self._processes.items()
            ],
        )

    def workers(self) -> list[WorkerRow]:
        """Return the workers, and the learner."""
        return [*map(self._worker, range(self._job.spec.workers)), self._learner_row()]

    def history(self) -> History:
        """Return the series."""
        return self._history.series.points()

    def timeline(self) -> list[Moment]:
        """Return what happened."""
        return list(self._history.moments)

    async def logs(self, key: str, worker: int | None, *, previous: bool, tail: int, viewer: Viewer) -> str:
        """Return the last lines of a process; see `Source`."""
        process = self._processes.get(worker_name(worker))
        log = (process.previous if previous else process.log) if process else None
        if log is None:
            raise LookupError(f"there is no {'earlier ' if previous else ''}output of {worker_name(worker)}")
        return log.text(tail)

    # --- how it follows the run ---

    @property
    def _learner(self) -> LearnerStatus | None:
        return self._watch.learner if self._watch else None

    @property
    def _beats(self) -> dict[int, WorkerStatus]:
        return dict(self._watch.workers) if self._watch else {}

    @property
    def _current(self) -> dict[int, WorkerStatus]:
        """The newest heartbeats of worker processes that run."""

        def is_current(beat: WorkerStatus) -> bool:
            process = self._processes.get(worker_name(beat.worker))
            return process is None or (not process.ended and beat.time_s >= process.since_s)

        return {index: beat for index, beat in self._beats.items() if is_current(beat)}

    async def _follow(self) -> None:
        saved_s = time.monotonic()
        while True:
            self._look()
            if time.monotonic() - saved_s > SAVE_S:
                self._save()
                saved_s = time.monotonic()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        if self._watch:
            beats = self._beats
            self._historian.look(
                time.time(),
                learner=self._learner,
                workers=beats,
                ready=ready(self._current),
                frames_per_second=self._watch.frames_per_second(),
                problems={} if self._ended else self._problems(),
            )

    def _view(self) -> JobView:
        workers = [self._processes.get(worker_name(index)) for index in range(self._job.spec.workers)]
        seen = Seen(
            learner=self._learner,
            workers=self._current,
            problem=self._problem(),
            frames_per_second=self._watch.frames_per_second() if self._watch else 0.0,
            restarts=sum(process.starts - 1 for process in workers if process),
            last_error=self._last_error,
            started_s=self._started_s,
            ended=self._ended,
            ended_s=self._ended_s,
        )
        return job_view(self._job, seen)

    def _problem(self) -> tuple[str, str] | None:
        """Return what keeps the run from its work now, as a reason and a sentence."""
        nats = self._processes.get(NATS)
        if nats and nats.ended is not None:
            return "NatsUnavailable", nats.ended
        for name, process in self._processes.items():
            if process.ended:
                return "WorkerCrashed" if name.startswith("worker ") else "EvaluationCrashed", process.ended
        for index, text in self._problems().items():
            return "WorkerCrashed" if self._beats[index].state is WorkerState.FAILED else "WorkerStuck", text
        return None

    def _problems(self) -> dict[int, str]:
        """Return what keeps workers from their work, by index. One that starts again is silent until it has started."""
        found = self._watch.problems() if self._watch else {}
        heard = {index for index, beat in self._beats.items() if beat.state is WorkerState.FAILED} | {*self._current}
        return {index: text for index, text in found.items() if index in heard}

    def _worker(self, index: int) -> WorkerRow:
        learner, process, beat = self._learner, self._processes.get(worker_name(index)), self._beats.get(index)
        row = WorkerRow(index=index, state="Pending")
        if beat:
            row = worker_row(beat, learner.version if learner else None)
        found: dict[str, object] = {"node": platform.node(), "gpus": self._job.spec.resources.gpu.count}
        if self._ended:
            is_known = beat and beat.state in (WorkerState.COMPLETE, WorkerState.FAILED)
            found |= {"state": row.state if is_known else "Ended", "frames_per_second": 0.0}
        elif process and process.ended:
            is_known = beat and beat.state is WorkerState.FAILED
            found |= {"state": row.state if is_known else "Restarting", "frames_per_second": 0.0}
        elif process and index not in self._current:
            incarnation = beat.incarnation + 1 if beat else 0
            found |= {"state": WorkerState.STARTING, "incarnation": incarnation, "frames_per_second": 0.0}
        if process:
            found |= {
                "restarts": process.starts - 1,
                "last_error": row.last_error or one_line(process.ended or ""),
                "has_previous": process.previous is not None,
                "since": process.since_s,
            }
        return row.model_copy(update=found)

    def _learner_row(self) -> WorkerRow:
        process = self._processes.get(LEARNER)
        state = "Ended" if self._ended else "Running" if process else "Pending"
        row = learner_row(self._learner, state, self._watch.frames_per_second() if self._watch else 0.0)
        return row.model_copy(update={"node": platform.node(), "since": process.since_s if process else None})

    def _end(self, kind: ConditionType, reason: str, text: str) -> None:
        """Note the end of the run; the first one counts."""
        if self._ended is None:
            self._ended, self._ended_s = condition(kind, reason, one_line(text)), time.time()
            happened = {ConditionType.COMPLETE: Happened.COMPLETE, ConditionType.FAILED: Happened.FAILED}
            self._history.note(self._ended_s, happened.get(kind, Happened.SUSPENDED), one_line(text))

    def _save(self) -> None:
        run = SavedRun(page=self.page(), workers=self.workers(), history=self.history(), timeline=self.timeline())
        try:
            run.write(self.folder)
            for worker in (*range(self._job.spec.workers), None):
                if process := self._processes.get(worker_name(worker)):
                    for log, previous in ((process.log, False), (process.previous, True)):
                        if log and not log.is_saved:
                            write_log(self.folder, worker, log.text(), previous=previous)
                            log.is_saved = True
        except OSError as error:
            self._warn(f"the run is not saved: {error.filename or self.folder}: {error.strerror}")


def _free(folder: Path) -> Path:
    """Return the folder, or one with a number if another run has it."""
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{folder.name.partition('_')[0]}_{number}")
    return folder
