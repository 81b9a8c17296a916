"""What the page shows: all jobs of the operator, from its reconciliations, and those that were deleted lately."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from rollfleet_api.status import CollectorJobStatus
from rollfleet_operator.cache import Cache
from rollfleet_operator.nats_port import KEPT_S, JobKey, NatsPort
from rollfleet_operator.snapshot import Snapshot
from rollfleet_operator.status import status as status_of
from rollfleet_operator.ui.job_record import JobRecord
from rollfleet_operator.ui.logs import PodLogs
from rollfleet_operator.ui.saved_page import PageInvalid, SavedPage
from rollfleet_ui.model import History, JobPage, JobRow, Moment, WorkerRow
from rollfleet_ui.source import Listener, Viewer

log = logging.getLogger(__name__)

MOST_KEPT_BYTES: Final = 16 << 20
"""The most bytes of deleted jobs in memory; the oldest go first."""

LOOKED_AT_S: Final = 10.0
"""Seconds for which a job counts as looked at: a page that shows it asks again at each change."""


@dataclass(slots=True, kw_only=True)
class _Kept:
    """A job that does not exist, or has not been seen yet.

    Attributes:
        row: Its row.
        data: The saved page.
        since_s: Since when it is kept.
        is_deleted: Whether it was deleted, as far as is known.
        is_saved: Whether NATS has it.
        saved_s: Time of that.
    """

    row: JobRow
    data: bytes
    since_s: float
    is_deleted: bool
    is_saved: bool
    saved_s: float = 0.0


class Fleet:
    """The jobs of an operator, as a source of `rollfleet_ui`. For one event loop.

    Args:
        cache: The jobs that exist.
        listed: Returns whether the namespace of a job was listed: without it, a missing job is unknown, not deleted.
        logs: Reads logs.
        clock: Returns seconds since the epoch.

    Example:
        >>> fleet = Fleet(cache, lambda key: True, logs)
        >>> fleet.update(JobKey("default", "cartpole"), snapshot, status)
        >>> fleet.jobs()[0].key
        'default/cartpole'
    """

    def __init__(
        self, cache: Cache, listed: Callable[[JobKey], bool], logs: PodLogs, clock: Callable[[], float] = time.time
    ) -> None:
        self._cache, self._listed, self._logs, self._clock = cache, listed, logs, clock
        self._records: dict[JobKey, JobRecord] = {}
        self._kept: dict[JobKey, _Kept] = {}
        self._listeners: set[Listener] = set()
        self._looked_at: dict[JobKey, float] = {}

    def update(self, key: JobKey, snapshot: Snapshot | None = None, status: CollectorJobStatus | None = None) -> None:
        """Take in the newest state of a job; see `JobRecord.update`."""
        manifest = self._cache.job(key)
        if manifest is None:
            return
        with _harmless(key):
            record = self._records.get(key)
            if record is None or record.uid != manifest["metadata"]["uid"]:
                record = self._records[key] = JobRecord(manifest, self._take(key, manifest["metadata"]["uid"]))
            if record.update(manifest, snapshot, status):
                self._notify(key)

    async def refresh(self, nats: NatsPort) -> None:
        """Take in what no reconciliation reports: jobs that were deleted while no operator ran, and new heartbeats.

        Only heartbeats of the jobs that are looked at, between two reconciliations.

        Raises:
            NatsUnavailable: NATS is away.
        """
        for key, kept in self._kept.items():
            if not kept.is_deleted and self._cache.job(key) is None and self._listed(key):
                kept.is_deleted = True
                self._notify(key)
        oldest_s = self._clock() - LOOKED_AT_S
        self._looked_at = {key: time_s for key, time_s in self._looked_at.items() if time_s >= oldest_s}
        for key in list(self._looked_at):
            record, manifest = self._records.get(key), self._cache.job(key)
            before = record.snapshot if record else None
            if record is None or before is None or manifest is None or before.stopped:
                continue
            if manifest["metadata"].get("generation") != before.job.metadata.generation:  # a reconciliation is due
                continue
            heartbeats = await nats.heartbeats(before.job)
            if record.snapshot is before:  # no reconciliation was faster
                snapshot = replace(before, heartbeats=heartbeats, now_s=self._clock())
                self.update(key, snapshot, status_of(snapshot))

    def gone(self, key: JobKey) -> None:
        """Keep the page of a job that was deleted."""
        record = self._records.pop(key, None)
        if record is None:
            return
        with _harmless(key):
            now_s, row = self._clock(), record.row
            data = record.delete(now_s).to_bytes()
            self._kept[key] = _Kept(row=row, data=data, since_s=now_s, is_deleted=True, is_saved=False)
            self._forget()
            self._notify(key)

    def restore(self, pages: Mapping[JobKey, bytes]) -> None:
        """Take in the pages that an earlier operator saved."""
        for key, data in pages.items():
            try:
                saved = SavedPage.from_bytes(data)
            except PageInvalid as error:
                log.warning("the saved page of %s/%s was ignored: %s", *key, error)
                continue
            row, record = saved.page.row, self._records.get(key)
            if record is None:
                kept = _Kept(row=row, data=data, since_s=self._clock(), is_deleted=False, is_saved=True)
                self._kept.setdefault(key, kept)
            elif record.uid == row.uid:
                record.restore(saved)
            self._notify(key)

    def unsaved(self) -> list[JobKey]:
        """Return the jobs with changes since they were last saved, or saved so long ago that NATS forgets them soon."""
        self._forget()
        oldest_s = self._clock() - KEPT_S / 2
        changed = [key for key, record in self._records.items() if not record.is_saved or record.saved_s < oldest_s]
        return [*changed, *(key for key, kept in self._kept.items() if not kept.is_saved)]

    @contextmanager
    def saving(self, key: JobKey) -> Iterator[bytes]:
        """Give what to save of a job of `unsaved`. It counts as saved unless the block raises."""
        of = self._records.get(key) or self._kept[key]
        of.is_saved, of.saved_s = True, self._clock()
        try:
            yield of.data if isinstance(of, _Kept) else of.saved().to_bytes()
        except BaseException:
            of.is_saved = False
            raise

    def jobs(self) -> list[JobRow]:
        """Return all jobs; see `rollfleet_ui.source.Source`, as for the methods below."""
        return [row for key in {*self._records, *self._kept} if (row := self._row(key))]

    def row(self, key: str) -> JobRow | None:
        """Return the row of a job."""
        return self._row(_parsed(key))

    def job(self, key: str) -> JobPage | None:
        """Return all of a job."""
        row = self.row(key)
        if record := self._records.get(_parsed(key)):
            self._looked_at[_parsed(key)] = self._clock()
            return record.page()
        saved = self._saved(key)
        return saved.page.model_copy(update={"row": row}) if saved and row else None

    def workers(self, key: str) -> list[WorkerRow]:
        """Return the workers of a job, and its learner."""
        if record := self._records.get(_parsed(key)):
            return record.workers()
        saved = self._saved(key)
        return saved.workers if saved else []

    def history(self, key: str) -> History:
        """Return the series of a job."""
        if record := self._records.get(_parsed(key)):
            return record.history.series.points()
        saved = self._saved(key)
        return saved.history.series.points() if saved else History()

    def timeline(self, key: str) -> list[Moment]:
        """Return what happened to a job."""
        if record := self._records.get(_parsed(key)):
            return record.history.moments
        saved = self._saved(key)
        return saved.history.moments if saved else []

    async def logs(self, key: str, worker: int | None, *, previous: bool, tail: int, viewer: Viewer) -> str:
        """Return the last lines of a pod's log, read with the viewer's rights."""
        return await self._logs.read(_parsed(key), worker, previous=previous, tail=tail, token=viewer.token or "")

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener with the key of each job that changes."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def _row(self, key: JobKey) -> JobRow | None:
        if record := self._records.get(key):
            return record.row
        kept = self._kept.get(key)
        return kept.row.model_copy(update={"deleted": kept.is_deleted}) if kept else None

    def _saved(self, key: str) -> SavedPage | None:
        kept = self._kept.get(_parsed(key))
        return SavedPage.from_bytes(kept.data) if kept else None

    def _take(self, key: JobKey, uid: str) -> SavedPage | None:
        """Return the saved page of a job that exists, which is now in its record; that of an earlier job is dropped."""
        kept = self._kept.pop(key, None)
        return SavedPage.from_bytes(kept.data) if kept and kept.row.uid == uid else None

    def _forget(self) -> None:
        """Forget deleted jobs, the oldest first, beyond the bounds."""
        size, now_s = 0, self._clock()
        for key, kept in sorted(self._kept.items(), key=lambda each: -each[1].since_s):
            if not kept.is_deleted:  # its record comes
                continue
            size += len(kept.data)
            if size > MOST_KEPT_BYTES or now_s - kept.since_s > KEPT_S:
                del self._kept[key]
                self._notify(key)

    def _notify(self, key: JobKey) -> None:
        for listener in self._listeners:
            listener("/".join(key))


@contextmanager
def _harmless(key: JobKey) -> Iterator[None]:
    """Report an error, and go on: a page that fails stops no job."""
    try:
        yield
    except ValidationError as error:  # stored before the API server had a rule
        log.debug("%s/%s: not on the page: %s", *key, error)
    except Exception:
        log.exception("%s/%s: error in the page", *key)


def _parsed(key: str) -> JobKey:
    namespace, _, name = key.partition("/")
    return JobKey(namespace, name)
