"""A run on this machine, by the rules of a cluster's jobs: its processes are pods, and its status follows from them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rollfleet_api.diagnosis import diagnose
from rollfleet_api.job import CollectorJob
from rollfleet_api.state.problems import Problem
from rollfleet_api.state.processes import Heartbeats, Processes
from rollfleet_api.state.snapshot import Snapshot
from rollfleet_api.state.status import status
from rollfleet_api.state.verdict import Stage, Verdict
from rollfleet_api.times import format_time
from rollfleet_api.views import JobView
from rollfleet_api.waits import Waits
from rollfleet_ui.job_record import JobRecord
from rollfleet_ui.model import ObjectRow


class LocalJob:
    """The state of a run, and its record for the page.

    Args:
        job: The job.
        run: The run's folder, by which advice names it.
        started_s: Its start, in seconds since the epoch.
        created: The first moment of its timeline.
        objects: Returns the objects of the run, such as its processes.

    Attributes:
        record: What the page shows of it.
        run: The same; it may change.
    """

    def __init__(
        self,
        job: CollectorJob,
        run: Path,
        started_s: float,
        *,
        created: str = "created",
        objects: Callable[[], list[ObjectRow]] = lambda: [],
    ) -> None:
        metadata = job.metadata.model_copy(update={"creation_timestamp": format_time(started_s)})
        self._job = job.model_copy(update={"metadata": metadata})
        self.run = run
        self._waits = Waits()
        self._end: Verdict | None = None
        self._ended: str | None = None
        self._view = JobView.model_validate(self._job.model_dump(mode="json", by_alias=True, exclude_none=True))
        self.record = JobRecord(
            self._view, lambda _: objects(), explain=lambda view: diagnose(view, run=str(self.run)), created=created
        )

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self._end is not None

    def end(self, verdict: Verdict, now_s: float) -> None:
        """Note the end of the run; the first one counts. A live job's end is that its user stopped it."""
        if self._end is None:
            self._end, self._ended = verdict, format_time(now_s)

    def look(
        self,
        processes: Processes,
        heartbeats: Heartbeats,
        now_s: float,
        *,
        problem: Problem | None = None,
        frames_per_second: float = 0.0,
    ) -> None:
        """Take in the present state. `problem` is what keeps the run from its work, besides ends of processes."""
        stopped = self._end is not None and not self._end.stage.ended
        spec = self._job.spec.model_copy(update={"suspend": True}) if stopped else self._job.spec
        waits = self._waits.look(now_s, heartbeats.learner, heartbeats.workers)
        snapshot = Snapshot(
            job=self._job.model_copy(update={"spec": spec}),
            observed=processes,
            heartbeats=heartbeats,
            verdict=self._end or Verdict(Stage.LIVE),
            problem=None if self._end else problem,
            frames_per_second=frames_per_second,
            now_s=now_s,
            bottleneck=self._waits.bottleneck(),
            waits=waits,
        )
        if snapshot.problem is None and (stuck := next(iter(snapshot.stuck.values()), None)):
            snapshot = replace(snapshot, problem=Problem("WorkerStuck", stuck))
        found = status(snapshot).model_copy(update={"completion_time": self._ended})
        self._job = self._job.model_copy(update={"status": found})
        self.record.update(self._view.model_copy(update={"status": found}), snapshot)
