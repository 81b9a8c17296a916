"""A job at one moment: the one value from which status and conditions follow."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import WorkerState, WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.state.problems import Problem
from rollfleet_api.state.processes import Heartbeats, Processes, Run
from rollfleet_api.state.verdict import Stage, Verdict
from rollfleet_api.waits import Shares

FRESH_S: Final = 30.0
"""A worker without a heartbeat for this long is not ready. Heartbeats come once a second; clocks may differ by less."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """All that is known of a job at one moment.

    `problem` is the error of the last attempt to create its children, and `frames_per_second` a mean over 30 s.
    `bottleneck` says who waits for whom; empty: unknown. `waits` are the shares behind it; None: unknown.
    """

    job: CollectorJob
    observed: Processes
    heartbeats: Heartbeats
    verdict: Verdict
    problem: Problem | None
    frames_per_second: float
    now_s: float
    bottleneck: str = ""
    waits: Shares | None = None

    @property
    def stopped(self) -> bool:
        """Whether no worker should run."""
        return self.job.spec.suspend or self.verdict.stage is not Stage.LIVE

    @property
    def role(self) -> Role:
        """The role that the job is about: its workers or, if it has none, its environment servers."""
        return Role.WORKER if self.job.spec.workers else Role.ENV_SERVER

    @property
    def run(self) -> Run | None:
        """The current run of that role."""
        return self.observed.current.get(self.role)

    @property
    def wanted(self) -> int:
        """Number of processes of that role that should run."""
        return 0 if self.stopped else self.job.spec.size(self.role)

    @cached_property
    def pods(self) -> list[Pod]:
        """Pods of the current run. A pod that is being deleted does not count."""
        pods = self.observed.pods_of(self.run)
        return [pod for pod in pods if not pod.deleting and not pod.finished]

    @property
    def running(self) -> bool:
        """Whether the container of one runs."""
        return any(pod.running for pod in self.pods)

    @cached_property
    def reporting(self) -> list[WorkerStatus]:
        """Heartbeats of the workers that run and report. A worker that is still importing its libraries does not."""
        beats = [(pod, self.heartbeats.workers.get(pod.index)) for pod in self.pods if pod.running]
        return [beat for pod, beat in beats if beat and self._is_current(pod, beat)]

    @property
    def ready(self) -> int:
        """Number of workers that run and report, or of servers that accept connections."""
        if self.stopped or self.run is None:
            return 0
        return len(self.reporting) if self.role is Role.WORKER else self.run.ready

    @property
    def states(self) -> frozenset[WorkerState]:
        """States of the workers that run and report."""
        return frozenset(beat.state for beat in self.reporting)

    @property
    def stuck(self) -> dict[int, str]:
        """Why workers that run are stuck, by index: in one step of the environments, or silent while NATS answers."""
        found, suspect_s = dict[int, str](), self.job.spec.failure.suspect_after_seconds
        answers = self.now_s - self.heartbeats.since_s >= FRESH_S
        for pod, beat in ((pod, self.heartbeats.workers.get(pod.index)) for pod in self.pods if pod.running):
            if beat is None or beat.time_s < pod.created_s or beat.state.ended:
                continue
            silent_s = self.now_s - beat.time_s
            if answers and silent_s >= max(FRESH_S, suspect_s):
                found[pod.index] = f"worker {pod.index} has sent no heartbeat for {silent_s:.0f} s"
            elif beat.in_step_s >= suspect_s:
                found[pod.index] = f"worker {pod.index} has been in one step for {beat.in_step_s:.0f} s"
        return found

    def _is_current(self, pod: Pod, beat: WorkerStatus) -> bool:
        return (
            beat.state not in (WorkerState.STARTING, WorkerState.FAILED)
            and beat.time_s >= pod.created_s  # an older one is of an earlier pod
            and abs(self.now_s - beat.time_s) < FRESH_S
        )
