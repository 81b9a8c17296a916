"""What the page knows of one job: its newest state, and its history since the record began."""

from collections.abc import Callable
from typing import Final

import yaml

from rollfleet_api.diagnosis import Diagnosis, diagnose
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.state.problems import crashed, title
from rollfleet_api.state.snapshot import Snapshot
from rollfleet_api.status import ConditionType, Phase
from rollfleet_api.times import parse_time
from rollfleet_api.views import JobView
from rollfleet_ui.edits import edit
from rollfleet_ui.history import JobHistory
from rollfleet_ui.model import Happened, History, JobPage, JobRow, Moment, ObjectRow, WorkerRow
from rollfleet_ui.rows import SKETCH_POINTS, job_row, worker_rows
from rollfleet_ui.spec_text import defaulted, spec_text

_ENDS: Final = {
    Phase.COMPLETE: (Happened.COMPLETE, ConditionType.COMPLETE),
    Phase.FAILED: (Happened.FAILED, ConditionType.FAILED),
    Phase.SUSPENDED: (Happened.SUSPENDED, ConditionType.SUSPENDED),  # it is an end of a run on one machine
}


class JobRecord:
    """The record of a job.

    Args:
        view: The job as it is now.
        objects: Returns the objects that the job became, except its pods.
        explain: Returns the diagnosis of the job.
        created: What its first moment says.
    """

    def __init__(
        self,
        view: JobView,
        objects: Callable[[Snapshot], list[ObjectRow]],
        *,
        explain: Callable[[JobView], Diagnosis] = diagnose,
        created: str = "created",
    ) -> None:
        self._view, self._objects, self._explain = view, objects, explain
        self._snapshot: Snapshot | None = None
        self._history = JobHistory()
        self._history.note(view.metadata.creation_timestamp.timestamp(), Happened.CREATED, created)
        self._spec, self._generation = "", -1
        self._stopped, self._away = True, ""
        self._ran, self._ended = dict[str, Pod](), set[str]()  # pods, by UID
        self.row = self._new_row()

    @property
    def uid(self) -> str:
        """The job's UID."""
        return self._view.metadata.uid

    def update(self, view: JobView, snapshot: Snapshot | None) -> None:
        """Take in the newest state.

        Args:
            view: The job, with its status now.
            snapshot: All that is known of it; None: it cannot be read, or is not while it is deleted.
        """
        self._view, self._snapshot = view, snapshot or self._snapshot
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
        written = self._view.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return JobPage(
            row=self.row,
            status=self._view.status,
            spec=self._spec if is_read else yaml.safe_dump(written, sort_keys=False),
            defaulted=defaulted(snapshot.job.spec) if snapshot and is_read else [],
            objects=self._objects(snapshot) if snapshot else [],
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
        return job_row(self._view, self._explain(self._view), returns)

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
        current = [snapshot.observed.current.get(role) for role in (Role.WORKER, Role.LEARNER)]
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
            self._history.look(
                snapshot.now_s,
                learner=snapshot.heartbeats.learner,
                workers=snapshot.heartbeats.workers,
                ready=snapshot.ready,
                frames_per_second=snapshot.frames_per_second,
                waits=snapshot.waits,
                problems=snapshot.stuck,
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
