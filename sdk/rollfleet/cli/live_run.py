"""A run on this machine as a source of the page. It is saved into a folder while it goes on."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from rollfleet.cli.run_processes import RunProcesses
from rollfleet.cli.watch import JobWatch
from rollfleet.system.child_processes import LAST_LINES
from rollfleet_api.job import CollectorJob
from rollfleet_api.state.verdict import Stage, Verdict
from rollfleet_api.text import one_line
from rollfleet_ui.job_record import JobRecord
from rollfleet_ui.local_job import LocalJob
from rollfleet_ui.saved_runs import SavedRun, write_log
from rollfleet_ui.source import Viewer

LOOK_S: Final = 0.5
SAVE_S: Final = 10.0


class LiveRun:
    """A run, its history, and the output of its processes.

    Args:
        runs: The folder of all saved runs.
        warn: Takes a line about a file that cannot be written.

    Attributes:
        watch: The job's heartbeats, from its call of `listen` on.
        processes: The run's processes.
        folder: The run's folder, which `until_end` makes.
    """

    def __init__(self, job: CollectorJob, runs: Path, warn: Callable[[str], None]) -> None:
        self._key, self._warn, began_s = job.key, warn, time.time()
        self.folder = runs / job.metadata.name / time.strftime("%Y%m%d-%H%M%S")
        self.watch, self.processes = JobWatch(job), RunProcesses(job)
        workers = f"{job.spec.workers} worker{'s' if job.spec.workers != 1 else ''}"
        self._job = LocalJob(
            job,
            self.folder,
            began_s,
            created=f"started on this machine with {workers}",
            objects=self.processes.objects,
        )

    def end(self, verdict: Verdict) -> None:
        """Note the end of the run; the first one counts."""
        self.processes.over()
        self._job.end(verdict, time.time())

    async def until_end(self, run: Coroutine[Any, Any, int]) -> int:
        """Wait for a run, follow it, and save it. Returns its exit code."""
        self._job.run = self.folder = _free(self.folder)
        following = asyncio.create_task(self._follow())
        try:
            return await run
        except Exception as error:
            self.end(Verdict(Stage.FAILED, "Error", one_line(str(error))))
            raise
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            self.look()
            self._save()

    def jobs(self) -> Mapping[str, JobRecord]:
        """Return the run by its key; see `Source`."""
        return {self._key: self._job.record}

    async def logs(self, key: str, process: str, *, previous: bool, tail: int, viewer: Viewer) -> str:
        """Return the last lines of a process; see `Source`."""
        for name, is_previous, child in self.processes.outputs():
            if (name, is_previous) == (process, previous):
                return child.last_output(tail)
        raise LookupError(f"there is no {'earlier ' if previous else ''}output of {process}")

    def look(self) -> None:
        """Take in the present state."""
        self._job.look(
            self.processes.observed(),
            self.watch.heartbeats,
            time.time(),
            problem=self.processes.nats_away,
            frames_per_second=self.watch.frames_per_second,
        )

    async def _follow(self) -> None:
        saved_s = time.monotonic()
        while True:
            self.look()
            if time.monotonic() - saved_s > SAVE_S:
                self._save()
                saved_s = time.monotonic()
            await asyncio.sleep(LOOK_S)

    def _save(self) -> None:
        try:
            SavedRun.of(self._job.record, self.processes.observed().pods).write(self.folder)
            for name, is_previous, child in self.processes.outputs():
                write_log(self.folder, name, child.last_output(LAST_LINES), previous=is_previous)
        except OSError as error:
            cure = "" if self._job.ended else "; correct this while the run goes on, and nothing is lost"
            self._warn(f"the run is not saved: {error.filename or self.folder}: {error.strerror}{cure}")


def _free(folder: Path) -> Path:
    """Make the folder, or one with a number if another run has it. `_save` reports that none can be made."""
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        for name in chain([folder.name], (f"{folder.name}_{number}" for number in count(2))):
            with suppress(FileExistsError):
                folder.with_name(name).mkdir(mode=0o700)
                return folder.with_name(name)
    return folder
