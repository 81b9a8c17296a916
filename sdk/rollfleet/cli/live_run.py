"""A run on this machine as a source of the page. It is saved into a folder while it goes on."""

import asyncio
import platform
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from rollfleet.cli.watch import JobWatch
from rollfleet.system.child_processes import LAST_LINES, Child
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import WorkerState, WorkerStatus
from rollfleet_api.reported import reported
from rollfleet_api.status import CollectorJobStatus, ConditionType
from rollfleet_api.text import one_line
from rollfleet_ui.history import JobHistory
from rollfleet_ui.local_status import STOPPED, final_status, page_of, ready, running_status
from rollfleet_ui.model import Happened, History, JobPage, JobRow, Moment, ObjectRow, WorkerRow
from rollfleet_ui.rows import learner_row, worker_row
from rollfleet_ui.saved_runs import SavedRun, write_log
from rollfleet_ui.source import Viewer

LOOK_S: Final = 0.5
SAVE_S: Final = 10.0
NATS: Final = "nats-server"
LEARNER: Final = "learner"


@dataclass(slots=True)
class _Process:
    """A process of the run: its newest start, and how it ended, if it has."""

    child: Child
    starts: int = 1
    ended: str | None = None
    previous: Child | None = None


class LiveRun:
    """A run, its history, and the output of its processes.

    Args:
        runs: The folder of all saved runs.
        warn: Takes a line about a file that cannot be written.

    Attributes:
        watch: The job's heartbeats, from its call of `listen` on.
        folder: The run's folder, which `until_end` makes.
    """

    def __init__(self, job: CollectorJob, runs: Path, warn: Callable[[str], None]) -> None:
        self._job, self._warn = job, warn
        self._started_s = time.time()
        self.folder = runs / job.metadata.name / time.strftime("%Y%m%d-%H%M%S")
        self._history = JobHistory()
        self.watch = JobWatch(job)
        self._processes: dict[str, _Process] = {}
        self._last_error = ""
        self._ended: CollectorJobStatus | None = None
        workers = job.spec.workers
        text = f"started on this machine with {workers} worker{'s' if workers != 1 else ''}"
        self._history.note(self._started_s, Happened.CREATED, text)

    # --- what the run reports ---

    def started(self, child: Child) -> None:
        """Note that a process was started."""
        before = self._processes.get(child.name)
        if before is None:
            self._processes[child.name] = _Process(child)
            return
        self._processes[child.name] = _Process(child, before.starts + 1, previous=before.child)
        if child.name == NATS:
            self._history.note(time.time(), Happened.NATS_BACK, "nats-server is back")

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
            kind = Happened.LEARNER_ENDED if process == LEARNER else Happened.WORKER_ENDED
            self._history.note(time.time(), kind, self._last_error, found.child.last_output())

    def failed(self, reason: str, text: str) -> None:
        """Note why the run fails."""
        self._end(ConditionType.FAILED, reason, text)

    async def until_end(self, run: Coroutine[Any, Any, int]) -> int:
        """Wait for a run, follow it, and save it. Returns its exit code."""
        self.folder = _free(self.folder)
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
        return self.page().row

    def page(self) -> JobPage:
        """Return all of the run."""
        objects = [
            ObjectRow(
                kind="Process",
                name=name,
                state=f"pid {each.child.pid}" if each.ended is None and not self._ended else "ended",
            )
            for name, each in self._processes.items()
        ]
        page = page_of(self._job, self._started_s, self._status(), self._history)
        return page.model_copy(update={"objects": objects})

    def workers(self) -> list[WorkerRow]:
        """Return the workers, the evaluation workers, and the learner."""
        count = self._job.spec.evaluation.workers if self._job.spec.evaluation else 0
        evaluating = [name for name in map("evaluation worker {}".format, range(count)) if name in self._processes]
        return [
            *map(self._worker, range(self._job.spec.workers)),
            *map(self._evaluation, evaluating),
            self._learner_row(),
        ]

    def history(self) -> History:
        """Return the series."""
        return self._history.series.points()

    def timeline(self) -> list[Moment]:
        """Return what happened."""
        return list(self._history.moments)

    async def logs(self, key: str, process: str, *, previous: bool, tail: int, viewer: Viewer) -> str:
        """Return the last lines of a process; see `Source`."""
        found = self._processes.get(process)
        child = (found.previous if previous else found.child) if found else None
        if child is None:
            raise LookupError(f"there is no {'earlier ' if previous else ''}output of {process}")
        return child.last_output(tail)

    # --- how it follows the run ---

    @property
    def _current(self) -> dict[int, WorkerStatus]:
        """The newest heartbeats of worker processes that run."""

        def is_current(beat: WorkerStatus) -> bool:
            process = self._processes.get(f"worker {beat.worker}")
            return process is None or (not process.ended and beat.time_s >= process.child.started_s)

        return {index: beat for index, beat in self.watch.workers.items() if is_current(beat)}

    async def _follow(self) -> None:
        saved_s = time.monotonic()
        while True:
            self._look()
            if time.monotonic() - saved_s > SAVE_S:
                self._save()
                saved_s = time.monotonic()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        self._history.look(
            time.time(),
            learner=self.watch.learner,
            workers=self.watch.workers,
            ready=ready(self._current),
            frames_per_second=self.watch.frames_per_second,
            problems={} if self._ended else self._problems(),
        )

    def _status(self) -> CollectorJobStatus:
        learner, workers = self.watch.learner, self._current
        names = map("worker {}".format, range(self._job.spec.workers))
        status = self._ended or running_status(
            self._job, learner, workers, self._problem(), self.watch.frames_per_second
        )
        found = {
            "restarts": sum(self._processes[name].starts - 1 for name in names if name in self._processes),
            "last_error": self._last_error or None,
            **reported(learner, workers.values()),
        }
        return status.model_copy(update=found)

    def _problem(self) -> tuple[str, str] | None:
        """Return what keeps the run from its work now, as a reason and a sentence."""
        nats = self._processes.get(NATS)
        if nats and nats.ended is not None:
            return "NatsUnavailable", nats.ended
        for name, process in self._processes.items():
            if process.ended:
                return f"{name.partition(' ')[0].capitalize()}Crashed", process.ended
        for index, text in self._problems().items():
            return "WorkerCrashed" if self.watch.workers[index].state is WorkerState.FAILED else "WorkerStuck", text
        return None

    def _problems(self) -> dict[int, str]:
        """Return what keeps workers from their work, by index. One that starts again is silent until it has started."""
        beats = self.watch.workers
        heard = {index for index, beat in beats.items() if beat.state is WorkerState.FAILED} | {*self._current}
        return {index: text for index, text in self.watch.problems().items() if index in heard}

    def _worker(self, index: int) -> WorkerRow:
        name, learner, beat = f"worker {index}", self.watch.learner, self.watch.workers.get(index)
        process = self._processes.get(name)
        row = WorkerRow(process=name, index=index, state="Pending")
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
        return row.model_copy(update=found | (_of_process(process, row.last_error) if process else {}))

    def _evaluation(self, name: str) -> WorkerRow:
        process = self._processes[name]
        over = self._ended is not None or process.ended is not None
        state = "Running" if not over else "Restarting" if process.ended and not self._ended else "Ended"
        row = WorkerRow(process=name, state=state, node=platform.node())
        return row.model_copy(update=_of_process(process))

    def _learner_row(self) -> WorkerRow:
        process = self._processes.get(LEARNER)
        state = "Ended" if self._ended else "Pending" if not process else "Restarting" if process.ended else "Running"
        row = learner_row(self.watch.learner, state, self.watch.frames_per_second)
        return row.model_copy(update={"node": platform.node()} | (_of_process(process) if process else {}))

    def _end(self, kind: ConditionType, reason: str, text: str) -> None:
        """Note the end of the run; the first one counts."""
        if self._ended is None:
            now_s = time.time()
            self._ended = final_status(kind, reason, one_line(text), now_s)
            self._history.note(now_s, Happened(kind), one_line(text))

    def _save(self) -> None:
        run = SavedRun(page=self.page(), workers=self.workers(), history=self.history(), timeline=self.timeline())
        try:
            run.write(self.folder)
            for name, process in self._processes.items():
                write_log(self.folder, name, process.child.last_output(LAST_LINES))
                if process.previous:
                    write_log(self.folder, name, process.previous.last_output(LAST_LINES), previous=True)
        except OSError as error:
            cure = "" if self._ended else "; correct this while the run goes on, and nothing is lost"
            self._warn(f"the run is not saved: {error.filename or self.folder}: {error.strerror}{cure}")


def _of_process(process: _Process, error: str = "") -> dict[str, object]:
    return {
        "restarts": process.starts - 1,
        "last_error": error or one_line(process.ended or ""),
        "has_previous": process.previous is not None,
        "since": process.child.started_s,
    }


def _free(folder: Path) -> Path:
    """Make the folder, or one with a number if another run has it. `_save` reports that none can be made."""
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        for name in chain([folder.name], (f"{folder.name}_{number}" for number in count(2))):
            with suppress(FileExistsError):
                folder.with_name(name).mkdir(mode=0o700)
                return folder.with_name(name)
    return folder
