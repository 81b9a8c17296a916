"""The seams of the page: a source has jobs to show, a guard admits requests, a viewer is someone whom it admitted."""

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Protocol

from rollfleet_ui.model import History, JobPage, JobRow, Moment, WorkerRow

if TYPE_CHECKING:
    from aiohttp import web

Listener = Callable[[str], None]
"""Takes the key of a job that changed. It only notes the key."""


class Viewer(Protocol):
    """Someone whom a guard admitted."""

    @property
    def token(self) -> str | None:
        """Their own bearer token, to read logs with their rights. None: they need none."""
        ...

    async def readable(self, namespaces: Set[str]) -> Set[str]:
        """Return the namespaces whose jobs they may read."""
        ...


class Guard(Protocol):
    """Decides who may see the page."""

    async def admit(self, request: "web.Request") -> Viewer:
        """Admit a request.

        Raises:
            aiohttp.web.HTTPUnauthorized: It has no valid token.
            aiohttp.web.HTTPForbidden: It may not come from where it comes.
            aiohttp.web.HTTPFound: The browser has to repeat it elsewhere.
        """
        ...


class Source(Protocol):
    """Jobs to show. All methods run on the server's event loop; all but `logs` answer at once, from memory.

    Example:
        >>> def newest(source: Source) -> JobRow:
        ...     return max(source.jobs(), key=lambda row: row.created)
    """

    def jobs(self) -> list[JobRow]:
        """Return all jobs."""
        ...

    def row(self, key: str) -> JobRow | None:
        """Return a job as in `jobs`. None: unknown."""
        ...

    def job(self, key: str) -> JobPage | None:
        """Return all of a job. None: unknown."""
        ...

    def workers(self, key: str) -> list[WorkerRow]:
        """Return the workers of a job by index, then its learner."""
        ...

    def history(self, key: str) -> History:
        """Return the series of a job."""
        ...

    def timeline(self, key: str) -> list[Moment]:
        """Return what happened to a job, the oldest first."""
        ...

    async def logs(self, key: str, worker: int | None, *, previous: bool, tail: int, viewer: Viewer) -> str:
        """Return the last lines of a log.

        Args:
            key: The job.
            worker: The worker's index. None: the learner.
            previous: Of the incarnation before, rather than the present one.
            tail: The most lines.
            viewer: Who asks.

        Raises:
            PermissionError: The viewer may not read it.
            LookupError: The log is missing.
            OSError: It cannot be read now.
        """
        ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the key of each job that changes, appears or goes. Returns how to unsubscribe."""
        ...
