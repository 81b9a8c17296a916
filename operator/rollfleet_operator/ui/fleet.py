"""The jobs of the page: all of the operator, from its reconciliations, and their histories since its start."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from pydantic import ValidationError

from rollfleet_api.status import CollectorJobStatus
from rollfleet_operator.cache import Cache
from rollfleet_operator.nats_port import JobKey, NatsPort
from rollfleet_operator.snapshot import Snapshot
from rollfleet_operator.status import status as status_of
from rollfleet_operator.ui.job_record import JobRecord
from rollfleet_operator.ui.logs import PodLogs
from rollfleet_ui.model import History, JobPage, JobRow, Moment, WorkerRow
from rollfleet_ui.source import Listener, Viewer

log = logging.getLogger(__name__)

LOOKED_AT_S: Final = 10.0
"""Seconds for which a job counts as looked at: a page that shows it asks again at each change."""


class Fleet:
    """The jobs of an operator, as a source of `rollfleet_ui`. For one event loop.

    Args:
        cache: The jobs that exist.
        logs: Reads logs.
        clock: Returns seconds since the epoch.

    Example:
        >>> fleet = Fleet(cache, logs)
        >>> fleet.update(JobKey("default", "cartpole"), snapshot, status)
        >>> fleet.jobs()[0].key
        'default/cartpole'
    """

    def __init__(self, cache: Cache, logs: PodLogs, clock: Callable[[], float] = time.time) -> None:
        self._cache, self._logs, self._clock = cache, logs, clock
        self._records: dict[JobKey, JobRecord] = {}
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
                record = self._records[key] = JobRecord(manifest)
            if record.update(manifest, snapshot, status):
                self._notify(key)

    async def refresh(self, nats: NatsPort) -> None:
        """Take in new heartbeats of the jobs that are looked at, between two reconciliations.

        Raises:
            NatsUnavailable: NATS is away.
        """
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
        """Forget a job that was deleted."""
        if self._records.pop(key, None):
            self._notify(key)

    def jobs(self) -> list[JobRow]:
        """Return all jobs; see `rollfleet_ui.source.Source`, as for the methods below."""
        return [record.row for record in self._records.values()]

    def row(self, key: str) -> JobRow | None:
        """Return the row of a job."""
        record = self._records.get(_parsed(key))
        return record.row if record else None

    def job(self, key: str) -> JobPage | None:
        """Return all of a job."""
        record = self._records.get(_parsed(key))
        if record is None:
            return None
        self._looked_at[_parsed(key)] = self._clock()
        return record.page()

    def workers(self, key: str) -> list[WorkerRow]:
        """Return the workers of a job, and its learner."""
        record = self._records.get(_parsed(key))
        return record.workers() if record else []

    def history(self, key: str) -> History:
        """Return the series of a job."""
        record = self._records.get(_parsed(key))
        return record.history.series.points() if record else History()

    def timeline(self, key: str) -> list[Moment]:
        """Return what happened to a job."""
        record = self._records.get(_parsed(key))
        return record.history.moments if record else []

    async def logs(self, key: str, worker: int | None, *, previous: bool, tail: int, viewer: Viewer) -> str:
        """Return the last lines of a pod's log, read with the viewer's rights."""
        return await self._logs.read(_parsed(key), worker, previous=previous, tail=tail, token=viewer.token or "")

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener with the key of each job that changes."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

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
