"""The jobs of the page: all of the operator, from its reconciliations, and their histories since its start."""

import logging
from collections.abc import Mapping

from pydantic import ValidationError

from rollfleet_api.status import CollectorJobStatus
from rollfleet_operator.cache import Cache
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.snapshot import Snapshot
from rollfleet_operator.ui.job_record import JobRecord
from rollfleet_operator.ui.logs import PodLogs

log = logging.getLogger(__name__)


class ShownJobs:
    """The jobs of an operator, as a source of `rollfleet_ui`. For one event loop."""

    def __init__(self, cache: Cache, logs: PodLogs) -> None:
        self._cache, self.logs = cache, logs.read
        self._records: dict[str, JobRecord] = {}

    def update(self, key: JobKey, snapshot: Snapshot | None = None, status: CollectorJobStatus | None = None) -> None:
        """Take in a job's newest state, or its deletion; see `JobRecord.update`. A page that fails stops no job."""
        manifest = self._cache.job(key)
        if manifest is None:
            self._records.pop("/".join(key), None)
            return
        try:
            record = self._records.get("/".join(key))
            if record is None or record.uid != manifest["metadata"]["uid"]:
                record = self._records["/".join(key)] = JobRecord(manifest)
            record.update(manifest, snapshot, status)
        except ValidationError as error:  # stored before the API server had a rule
            log.debug("%s/%s: not on the page: %s", *key, error)
        except Exception:
            log.exception("%s/%s: error in the page", *key)

    def jobs(self) -> Mapping[str, JobRecord]:
        """Return all jobs; see `rollfleet_ui.source.Source`."""
        return self._records
