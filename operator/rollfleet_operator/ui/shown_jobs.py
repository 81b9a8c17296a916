"""The jobs of the page: all of the operator, from its reconciliations, and their histories since its start."""

import logging
from collections.abc import Mapping

from pydantic import ValidationError

from rollfleet_api.permissions import Role
from rollfleet_api.state.problems import why_not_running
from rollfleet_api.state.processes import Run
from rollfleet_api.state.snapshot import Snapshot
from rollfleet_api.status import CollectorJobStatus
from rollfleet_api.text import one_line
from rollfleet_api.views import JobView
from rollfleet_operator.cache import Cache
from rollfleet_operator.manifest import Manifest, Ref, ref
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.observed import Observed
from rollfleet_operator.ui.logs import PodLogs
from rollfleet_ui.job_record import JobRecord
from rollfleet_ui.model import ObjectRow

log = logging.getLogger(__name__)


class ShownJobs:
    """The jobs of an operator, as a source of `rollfleet_ui`. For one event loop."""

    def __init__(self, cache: Cache, logs: PodLogs) -> None:
        self._cache, self.logs = cache, logs.read
        self._records: dict[str, JobRecord] = {}

    def update(self, key: JobKey, snapshot: Snapshot | None = None, status: CollectorJobStatus | None = None) -> None:
        """Take in a job's newest state, or its deletion; see `JobRecord.update`. A page that fails stops no job.

        `status` is the job's status now; None: that of the manifest.
        """
        manifest = self._cache.job(key)
        if manifest is None:
            self._records.pop("/".join(key), None)
            return
        try:
            record, view = self._records.get("/".join(key)), _viewed(manifest, status)
            if record is None or record.uid != manifest["metadata"]["uid"]:
                record = self._records["/".join(key)] = JobRecord(view, object_rows)
            record.update(view, snapshot)
        except ValidationError as error:  # stored before the API server had a rule
            log.debug("%s/%s: not on the page: %s", *key, error)
        except Exception:
            log.exception("%s/%s: error in the page", *key)

    def jobs(self) -> Mapping[str, JobRecord]:
        """Return all jobs; see `rollfleet_ui.source.Source`."""
        return self._records


def object_rows(snapshot: Snapshot) -> list[ObjectRow]:
    """Return the objects that a job became, except its pods."""
    observed = snapshot.observed
    assert isinstance(observed, Observed), "the operator's snapshots have the job's objects"
    states = {Ref("Job", run.name): _state_of_run(run) for run in observed.runs}
    if server := observed.server:
        waits = (why_not_running(pod) for pod in observed.pods if pod.role is Role.NATS)
        why = next((found.message for found in waits if found), "Starting")
        states[ref(server)] = "Ready" if observed.server_ready else one_line(why)
    return [ObjectRow(kind=each.kind, name=each.name, state=states.get(each, "")) for each in sorted(observed.children)]


def _state_of_run(run: Run) -> str:
    if run.complete:
        return "Complete"
    return "Failed" if run.finished else "Suspended" if run.suspended else "Running"


def _viewed(manifest: Manifest, status: CollectorJobStatus | None) -> JobView:
    if status is None:
        return JobView.model_validate(manifest, by_alias=True, by_name=False)
    view = JobView.model_validate({**manifest, "status": {}}, by_alias=True, by_name=False)
    return view.model_copy(update={"status": status})
