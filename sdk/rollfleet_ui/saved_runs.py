"""Saved runs as a source of the page: all that lie in a folder, also while they are still written."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Final

from rollfleet_ui.history import JobHistory
from rollfleet_ui.model import History, JobPage, JobRow, Moment, WorkerRow
from rollfleet_ui.run_folder import PAGE, RunFolder, RunInvalid
from rollfleet_ui.source import Listener, Viewer

log = logging.getLogger(__name__)

DEPTH: Final = 3
"""How many folders deep a run may lie: `runs` has `runs/cartpole/20261122-180000`."""
LOOK_S: Final = 2.0
CUT_S: Final = 60.0
"""A run that has not ended and whose folder is silent for this long was killed."""

CUT: Final = "Cut"
"""The state of such a run."""


class SavedRuns:
    """The runs in a folder. Each is a job named `NAME@FOLDER`, as a job may have run many times.

    Args:
        folder: The folder.

    Example:
        >>> [row.key for row in SavedRuns(Path("runs")).jobs()]  # doctest: +SKIP
        ['default/cartpole@20261122-180000']
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, RunFolder] = {}
        self._rows: dict[str, JobRow] = {}
        self._keys: dict[Path, str] = {}
        self._stamps: dict[Path, tuple[float, bool]] = {}
        self._listeners: list[Listener] = []
        self.look()

    def look(self) -> None:
        """Read what is new in the folder, and call the listeners."""
        found = {Path(path) for path in _runs_in(str(self._folder), DEPTH)}
        changed = [key for path in sorted(found) if (key := self._read(path))]
        for path in self._keys.keys() - found:
            key = self._keys.pop(path)
            del self._runs[key], self._rows[key], self._stamps[path]
            changed.append(key)
        for key in changed:
            for listener in self._listeners:
                listener(key)

    async def follow(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def jobs(self) -> list[JobRow]:
        """Return all runs."""
        return list(self._rows.values())

    def row(self, key: str) -> JobRow | None:
        """Return a run as in `jobs`. None: unknown."""
        return self._rows.get(key)

    def job(self, key: str) -> JobPage | None:
        """Return all of a run. None: unknown, or it was deleted meanwhile."""
        try:
            folder = self._runs[key]
            return _shown(folder.page(), key, is_cut=self._stamps[folder.path][1])
        except (KeyError, OSError, RunInvalid):
            return None

    def workers(self, key: str) -> list[WorkerRow]:
        """Return the workers of a run as they were last seen."""
        try:
            return self._runs[key].workers()
        except (OSError, RunInvalid) as error:
            log.warning("%s", error)
            return []

    def history(self, key: str) -> History:
        """Return the series of a run."""
        return self._history(key).series.points()

    def timeline(self, key: str) -> list[Moment]:
        """Return what happened to a run."""
        return self._history(key).moments

    async def logs(self, key: str, worker: int | None, *, previous: bool, tail: int, viewer: Viewer) -> str:
        """Return the last lines of a log; see `Source`."""
        lines = self._runs[key].log(worker, previous=previous).splitlines()
        return "\n".join(lines[-tail:])

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the key of each run that changes; see `Source`."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _history(self, key: str) -> JobHistory:
        try:
            return self._runs[key].history()
        except (OSError, RunInvalid) as error:
            log.warning("%s", error)
            return JobHistory()

    def _read(self, path: Path) -> str | None:
        """Read a run. Returns its key; None: it has not changed, or cannot be read."""
        try:
            written_s = (path / PAGE).stat().st_mtime
            stamp = (written_s, time.time() - written_s > CUT_S)
            if self._stamps.get(path) == stamp:
                return None
            self._stamps[path] = stamp
            folder = RunFolder(path)
            page = folder.page()
        except FileNotFoundError:  # deleted meanwhile
            return None
        except (OSError, RunInvalid) as error:
            log.warning("this run is left out: %s", error)
            return None
        key = self._keys.setdefault(path, self._free_key(f"{page.row.key}@{path.name}"))
        self._runs[key], self._rows[key] = folder, _shown(page, key, is_cut=stamp[1]).row
        return key

    def _free_key(self, wanted: str) -> str:
        numbered = (f"{wanted}-{number}" for number in count(2))
        return next(key for key in chain([wanted], numbered) if key not in self._runs)


def _runs_in(folder: str, depth: int) -> Iterator[str]:
    """Yield the folders of runs. A run has no other runs inside."""
    if os.path.exists(os.path.join(folder, PAGE)):
        yield folder
    elif depth:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield from _runs_in(entry.path, depth - 1)


def _shown(page: JobPage, key: str, *, is_cut: bool) -> JobPage:
    """Return the page of a run under its key. One that was cut says so."""
    named: dict[str, object] = {"key": key, "name": key.partition("/")[2]}
    if page.row.ended is not None or not is_cut:
        return page.model_copy(update={"row": page.row.model_copy(update=named)})
    message = "its history ends here: the run was killed, or its machine stopped"
    found: dict[str, object] = {"state": CUT, "reason": "RunKilled", "message": message, "is_problem": False}
    return page.model_copy(
        update={
            "row": page.row.model_copy(update=named | found | {"frames_per_second": 0.0}),
            "diagnosis": page.diagnosis.model_copy(update=found | {"advice": ""}),
            "bottleneck": "",
        }
    )
