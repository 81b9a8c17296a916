"""The folder of a saved run. Later versions read what this one wrote; each file is replaced as a whole."""

import os
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from rollfleet_ui.history import HistoryInvalid, JobHistory
from rollfleet_ui.model import JobPage, WorkerRow

PAGE: Final = "job.json"
_WORKERS: Final = "workers.json"
_HISTORY: Final = "history.json.gz"
_LOGS: Final = "logs"
_ROWS: Final = TypeAdapter(list[WorkerRow])


class RunInvalid(ValueError):
    """A file in the folder is not what its name says. The text is one line, with the file."""


class RunFolder:
    """A folder with the page of one run.

    Args:
        path: The folder; `write` creates it.

    Example:
        >>> folder = RunFolder(Path("runs/cartpole/20261122-180000"))
        >>> folder.page().row.mean_return  # doctest: +SKIP
        475.0
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, page: JobPage, workers: list[WorkerRow], history: JobHistory) -> None:
        """Write all but the logs.

        Raises:
            OSError: A file cannot be written; earlier files are whole.
        """
        (self.path / _LOGS).mkdir(parents=True, exist_ok=True)
        _replace(self.path / _HISTORY, history.to_bytes())
        _replace(self.path / _WORKERS, _ROWS.dump_json(workers, by_alias=True))
        _replace(self.path / PAGE, page.model_dump_json(by_alias=True).encode())

    def write_log(self, worker: int | None, text: str, *, previous: bool = False) -> None:
        """Write the end of a log; `worker` None: the learner's.

        Raises:
            OSError: It cannot be written.
        """
        (self.path / _LOGS).mkdir(parents=True, exist_ok=True)
        _replace(self._log(worker, previous), text.encode(errors="replace"))

    def page(self) -> JobPage:
        """Read the job.

        Raises:
            OSError: It cannot be read.
            RunInvalid: It is not a job's page.
        """
        try:
            return JobPage.model_validate_json((self.path / PAGE).read_bytes(), by_alias=True)
        except ValidationError as error:
            raise _invalid(self.path / PAGE, error) from None

    def workers(self) -> list[WorkerRow]:
        """Read the rows of the workers and the learner.

        Raises:
            OSError: They cannot be read.
            RunInvalid: They are not rows.
        """
        try:
            return _ROWS.validate_json((self.path / _WORKERS).read_bytes(), by_alias=True)
        except ValidationError as error:
            raise _invalid(self.path / _WORKERS, error) from None

    def history(self) -> JobHistory:
        """Read the history.

        Raises:
            OSError: It cannot be read.
            RunInvalid: It is not a history.
        """
        try:
            return JobHistory.from_bytes((self.path / _HISTORY).read_bytes())
        except HistoryInvalid as error:
            raise RunInvalid(f"{self.path / _HISTORY}: {error}") from None

    def log(self, worker: int | None, *, previous: bool = False) -> str:
        """Read the end of a log; `worker` None: the learner's.

        Raises:
            LookupError: The log is missing.
        """
        try:
            return self._log(worker, previous).read_text(errors="replace")
        except FileNotFoundError:
            raise LookupError("this log was not saved") from None

    def _log(self, worker: int | None, previous: bool) -> Path:
        name = "learner" if worker is None else f"worker-{worker}"
        return self.path / _LOGS / f"{name}{'.previous' if previous else ''}.log"


def _replace(file: Path, data: bytes) -> None:
    new = file.with_name(f".{file.name}.new")
    new.write_bytes(data)
    os.replace(new, file)  # a reader sees the old one or the new one


def _invalid(file: Path, error: ValidationError) -> RunInvalid:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "JSON"
    return RunInvalid(f"{file}: {where}: {first['msg']}")
