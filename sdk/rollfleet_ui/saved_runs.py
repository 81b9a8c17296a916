"""Saved runs: a file for each, logs beside it, and a source of the page of all that lie in a folder."""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Final, Self

from pydantic import Field, ValidationError

from rollfleet_api.diagnosis import Diagnosis
from rollfleet_api.pods import Pod
from rollfleet_api.views import View
from rollfleet_ui.model import History, JobPage, JobRow, Moment, WorkerRow
from rollfleet_ui.source import ShownJob, Viewer

log = logging.getLogger(__name__)

FILE: Final = "run.json"
DEPTH: Final = 3
"""How many folders deep a run may lie: `runs` has `runs/cartpole/20261122-180000`."""
CUT_S: Final = 60.0
"""A run that has not ended and whose file is silent for this long was killed."""
CUT: Final = "Cut"
"""The state of such a run."""
_KILLED: Final = Diagnosis(
    state=CUT,
    reason="RunKilled",
    message="its history ends here: the run was killed, or its machine stopped",
)


class SavedRun(View):
    """A run, as its file has it: what the page last showed, and its processes as pods."""

    page: JobPage
    workers: list[WorkerRow]
    history: History
    timeline: list[Moment]
    pods: list[Pod] = Field(default=[])

    @classmethod
    def of(cls, shown: ShownJob, pods: Iterable[Pod] = ()) -> Self:
        """Return a run as it is shown now."""
        return cls(
            page=shown.page(),
            workers=shown.workers(),
            history=shown.history(),
            timeline=[*shown.timeline()],
            pods=[*pods],
        )

    def write(self, folder: Path) -> None:
        """Write it into a folder, which is created. A reader sees the earlier file or this one.

        Raises:
            OSError: It cannot be written.
        """
        _replace(folder / FILE, self.model_dump_json(by_alias=True))


def write_log(folder: Path, process: str, text: str, *, previous: bool = False) -> None:
    """Write the end of a log into the folder of a run. `process` is as in `WorkerRow`.

    Raises:
        OSError: It cannot be written.
    """
    _replace(_log_of(folder, process, previous), text)


class SavedRuns:
    """The runs in a folder, also while they are written. Each is a job `NAME@FOLDER`: a job may have run many times.

    Args:
        folder: The folder. Links in it are not followed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, tuple[int, JobRow | None]] = {}  # when the file was written, and its row

    def jobs(self) -> "dict[str, SavedJob]":
        """Return all runs; see `Source`."""
        found: dict[str, SavedJob] = {}
        for path, row in self._rows():
            wanted = f"{row.key}@{path.name}"
            key = next(key for key in chain([wanted], (f"{wanted}-{n}" for n in count(2))) if key not in found)
            is_cut = row.ended is None and time.time() - self._known[path][0] / 1e9 > CUT_S
            found[key] = SavedJob(path, key, row, is_cut=is_cut)
        return found

    async def logs(self, key: str, process: str, *, previous: bool, tail: int, viewer: Viewer) -> str:
        """Return the last lines of a log; see `Source`."""
        if (text := self.jobs()[key].log(process, previous=previous)) is None:
            raise LookupError("this log was not saved")
        return "\n".join(text.splitlines()[-tail:])

    def _rows(self) -> Iterator[tuple[Path, JobRow]]:
        """Yield the runs that can be read. A file is read again when it was written again."""
        for path in sorted(map(Path, _runs_in(str(self._folder), DEPTH))):
            with suppress(OSError):  # deleted meanwhile
                written_ns = (path / FILE).stat().st_mtime_ns
                if self._known.get(path, (0, None))[0] != written_ns:
                    self._known[path] = written_ns, _row_of(path)
                if (row := self._known[path][1]) is not None:
                    yield path, row


class SavedJob:
    """A saved run as the page shows it. Its row is in memory; all else is read from its file.

    Attributes:
        folder: Its folder.
        is_cut: Whether it was killed.
    """

    def __init__(self, folder: Path, key: str, row: JobRow, *, is_cut: bool) -> None:
        self.folder, self.is_cut = folder, is_cut
        self.row = row.model_copy(update={"key": key, "name": key.partition("/")[2]})
        if is_cut:
            self.row = self.row.model_copy(update={"diagnosis": _KILLED, "frames_per_second": 0.0})

    def page(self) -> JobPage:
        """Return all of it but what follows; see `ShownJob`."""
        page = _read(self.folder).page
        status = page.status.model_copy(update={"bottleneck": ""}) if self.is_cut else page.status
        return page.model_copy(update={"row": self.row, "status": status})

    def workers(self) -> list[WorkerRow]:
        """Return its workers; see `ShownJob`."""
        return _read(self.folder).workers

    def history(self) -> History:
        """Return its series."""
        return _read(self.folder).history

    def timeline(self) -> list[Moment]:
        """Return what happened to it."""
        return _read(self.folder).timeline

    def pods(self) -> tuple[Pod, ...]:
        """Return its processes as pods."""
        return tuple(_read(self.folder).pods)

    def log(self, process: str, *, previous: bool = False) -> str | None:
        """Return the saved end of a process' log; None: it was not saved. A link out of the folder is not followed."""
        file = _log_of(self.folder, process, previous)
        if file.resolve() != _log_of(self.folder.resolve(), process, previous) or not file.is_file():
            return None
        return file.read_text(errors="replace")


def _read(folder: Path) -> SavedRun:
    """Read a run.

    Raises:
        OSError: It cannot be read, or is not a run. The text is one line.
    """
    file = folder / FILE
    try:
        return SavedRun.model_validate_json(file.read_bytes(), by_alias=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "JSON"
        raise OSError(f"{file}: {where}: {first['msg']}") from None


def _row_of(folder: Path) -> JobRow | None:
    try:
        return _read(folder).page.row
    except OSError as error:
        log.warning("this run is left out: %s", error)
        return None


def _runs_in(folder: str, depth: int) -> Iterator[str]:
    """Yield the folders of runs. A run has no other runs inside."""
    if os.path.exists(os.path.join(folder, FILE)):
        yield folder
    elif depth:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _runs_in(entry.path, depth - 1)


def _log_of(folder: Path, process: str, previous: bool) -> Path:
    return folder / "logs" / f"{process.replace(' ', '-')}{'.previous' if previous else ''}.log"


def _replace(file: Path, text: str) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.new")
    new.write_text(text, errors="replace")
    os.replace(new, file)
