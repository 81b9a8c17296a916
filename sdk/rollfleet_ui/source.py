"""The seams of the page: a source has jobs to show, a guard admits requests, a viewer is someone whom it admitted."""

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Protocol

from rollfleet_ui.model import History, JobPage, JobRow, Moment, WorkerRow

if TYPE_CHECKING:
    from aiohttp import web


class Viewer(Protocol):
    """Someone whom a guard admitted."""

    @property
    def token(self) -> str | None:
        """Their own bearer token, to read logs with their rights. None: they need none."""

    async def readable(self, namespaces: Set[str]) -> Set[str]:
        """Return the namespaces whose jobs they may read."""


class Guard(Protocol):
    """Decides who may see the page."""

    async def admit(self, request: "web.Request") -> Viewer:
        """Admit a request.

        Raises:
            aiohttp.web.HTTPUnauthorized: It has no valid token.
            aiohttp.web.HTTPForbidden: It may not come from where it comes.
            aiohttp.web.HTTPFound: The browser has to repeat it elsewhere.
        """


class ShownJob(Protocol):
    """What the page shows of one job."""

    @property
    def row(self) -> JobRow:
        """Its row in the list of jobs."""

    def page(self) -> JobPage:
        """Return all of it but what follows."""

    def workers(self) -> list[WorkerRow]:
        """Return its workers by index, then its evaluation workers, then its learner."""

    def history(self) -> History:
        """Return its series."""

    def timeline(self) -> Sequence[Moment]:
        """Return what happened to it, the oldest first."""


class Source(Protocol):
    """Jobs to show. The methods run on the server's event loop; all but `logs` answer at once.

    Errors of a source and its jobs become answers: `LookupError` says that something is missing, `OSError` that it
    cannot be read now.

    Example:
        >>> def newest(source: Source) -> JobRow:
        ...     return max((job.row for job in source.jobs().values()), key=lambda row: row.created)
    """

    def jobs(self) -> Mapping[str, ShownJob]:
        """Return all jobs by key: `namespace/name`."""

    async def logs(self, key: str, process: str, *, previous: bool, tail: int, viewer: Viewer) -> str:
        """Return the last lines of a log.

        Args:
            key: The job, one of `jobs`.
            process: Whose, as `WorkerRow.process` names it.
            previous: Of the incarnation before, rather than the present one.
            tail: The most lines.
            viewer: Who asks.

        Raises:
            PermissionError: The viewer may not read it.
            LookupError: The log is missing.
            OSError: It cannot be read now.
        """
