"""What the page knows of one job: its newest state, and its history since the operator started."""

from typing import Final

import yaml

from rollfleet_api.diagnosis import diagnose
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.status import CollectorJobStatus, ConditionType, Phase
from rollfleet_api.times import parse_time
from rollfleet_api.views import JobView
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.problems import crashed, title
from rollfleet_operator.snapshot import Snapshot
from rollfleet_operator.ui.edits import edit
from rollfleet_operator.ui.workers import object_rows, worker_rows
from rollfleet_operator.verdict import current_run
from rollfleet_ui.history import JobHistory
from rollfleet_ui.model import Happened, History, JobPage, JobRow, Moment, WorkerRow
from rollfleet_ui.rows import SKETCH_POINTS, job_row
from rollfleet_ui.spec_text import defaulted, spec_text

_ENDS: Final = {
    Phase.COMPLETE: (Happened.COMPLETE, ConditionType.COMPLETE),
    Phase.FAILED: (Happened.FAILED, ConditionType.FAILED),
}


class JobRecord:
    """The record of a job."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest, self._view = manifest, _viewed(manifest)
        self._snapshot: Snapshot | None = None
        self._history = JobHistory()
        self._history.note(self._view.metadata.creation_timestamp.timestamp(), Happened.CREATED, "created")
        self._spec, self._generation = "", -1
        self._stopped, self._away = True, ""
        self._ran, self._ended = dict[str, Pod](), set[str]()  # pods, by UID
        self.row = self._new_row()

    @property
    def uid(self) -> str:
        """The job's UID."""
        return self._view.metadata.uid

    def update(self, manifest: Manifest, snapshot: Snapshot | None, status: CollectorJobStatus | None) -> None:
        """Take in the newest state.

        Args:
            manifest: The job, as the API server has it.
            snapshot: What the operator knows of it; None: the operator cannot read it, or does not while it is deleted.
            status: Its status now; None: that of the manifest.
        """
        self._manifest, self._view, self._snapshot = manifest, _viewed(manifest, status), snapshot or self._snapshot
        if snapshot:
            self._note_edit(snapshot)
            self._note_nats(snapshot)
            self._note_pods(snapshot)
            self._look(snapshot)
        self._note_end()
        self.row = self._new_row()

    def page(self) -> JobPage:
        """Return all of the job."""
        snapshot, is_read = self._snapshot, self._generation == self._view.metadata.generation
        return JobPage(
            row=self.row,
            bottleneck="" if self._stopped else self._history.bottleneck(),
            status=self._view.status,
            spec=self._spec if is_read else yaml.safe_dump(self._manifest["spec"], sort_keys=False),
            defaulted=defaulted(snapshot.job.spec) if snapshot and is_read else [],
            objects=object_rows(snapshot) if snapshot else [],
        )

    def workers(self) -> list[WorkerRow]:
        """Return the workers and the learner."""
        return worker_rows(self._snapshot) if self._snapshot else []

    def history(self) -> History:
        """Return its series."""
        return self._history.series.points()

    def timeline(self) -> list[Moment]:
        """Return what happened to it."""
        return self._history.moments

    def _new_row(self) -> JobRow:
        returns = self._history.series.sketch("meanReturn", SKETCH_POINTS)
        return job_row(self._view, diagnose(self._view), returns)

    def _note_edit(self, snapshot: Snapshot) -> None:
        generation = snapshot.job.metadata.generation or 0
        if generation == self._generation:
            return
        before, self._spec = self._spec, spec_text(snapshot.job.spec)
        if before and before != self._spec:
            self._history.note(snapshot.now_s, *edit(before, self._spec))
        self._generation = generation

    def _note_nats(self, snapshot: Snapshot) -> None:
        problem = snapshot.problem
        away = problem.message if problem and problem.reason == "NatsUnavailable" else ""
        if away and not self._away:
            self._history.note(snapshot.now_s, Happened.NATS_AWAY, "NATS is away", away)
        elif self._away and not away:
            self._history.note(snapshot.now_s, Happened.NATS_BACK, "NATS is back")
        self._away = away

    def _note_pods(self, snapshot: Snapshot) -> None:
        """Note pods that have failed since the last look, and those of a running job that were deleted."""
        pods = {pod.uid: pod for pod in snapshot.observed.pods}
        new = [pod for pod in pods.values() if pod.crash and pod.uid not in self._ended]
        ended = [(pod, crashed(pod, pod.crash).message, pod.crash.message) for pod in new if pod.crash]
        current = [current_run(snapshot.job, snapshot.observed, role) for role in (Role.WORKER, Role.LEARNER)]
        runs = {run.uid for run in current if run}
        for uid, pod in self._ran.items():
            left = (uid not in pods or pods[uid].deleting) and uid not in self._ended
            if left and pod.run in runs and (pod.role is Role.LEARNER or pod.index < snapshot.wanted):
                ended.append((pod, f"{title(pod)} ended: its pod was deleted", ""))
        for kind, is_learner in ((Happened.LEARNER_ENDED, True), (Happened.WORKER_ENDED, False)):
            found = [(text, detail) for pod, text, detail in ended if (pod.role is Role.LEARNER) == is_learner]
            self._history.note_all(snapshot.now_s, kind, found, "workers ended")
        self._ran = {pod.uid: pod for pod in pods.values() if pod.running and not pod.deleting}
        self._ended = (self._ended | {pod.uid for pod, _, _ in ended}) & pods.keys()

    def _look(self, snapshot: Snapshot) -> None:
        """Add a point to the series, of a job that has started, until it is suspended or has ended."""
        stopped = snapshot.stopped or self._view.status.start_time is None
        if not (stopped and self._stopped):
            suspect_s = snapshot.job.spec.failure.suspect_after_seconds
            self._history.look(
                snapshot.now_s,
                learner=snapshot.heartbeats.learner,
                workers=snapshot.heartbeats.workers,
                ready=snapshot.ready,
                frames_per_second=snapshot.frames_per_second,
                problems={
                    beat.worker: f"worker {beat.worker} has been in one step for {beat.in_step_s:.0f} s"
                    for beat in snapshot.reporting
                    if beat.in_step_s >= suspect_s
                },
            )
        self._stopped = stopped

    def _note_end(self) -> None:
        status = self._view.status
        if status.phase not in _ENDS or not status.completion_time:
            return
        kind, condition = _ENDS[status.phase]
        time_s, held = parse_time(status.completion_time), status.held(condition)
        if not any((moment.kind, moment.time) == (kind, time_s) for moment in self._history.moments):
            text = (held.message or held.reason) if held else ""
            self._history.note(time_s, kind, text or kind.lower())


def _viewed(manifest: Manifest, status: CollectorJobStatus | None = None) -> JobView:
    """Return what is shown of a job, with another status if there is a newer one."""
    if status is None:
        return JobView.model_validate(manifest, by_alias=True, by_name=False)
    view = JobView.model_validate({**manifest, "status": {}}, by_alias=True, by_name=False)
    return view.model_copy(update={"status": status})
