"""The workers of a job, by their heartbeats: which of them take part, and which have problems."""

from collections.abc import Mapping

from rollfleet_api.messages import WorkerState, WorkerStatus
from rollfleet_api.text import reason_of


class Roster:
    """The newest heartbeat of each worker, and the time since it came.

    The listener counts that time in seconds: it calls `tick` once a second, only while heartbeats can arrive. A jump of
    the clock, or a listener that was busy, asleep or disconnected, makes no worker look silent.

    `members` are the workers that a round of mode Sync waits for. They include each worker that the job had when the
    learner connected, and each one added later from its first heartbeat. They exclude workers that have left (SIGTERM),
    that failed for good, or that have become silent. A worker that comes back is a member again. A worker that never
    sent a heartbeat stays a member: its pod may be pending.

    Example:
        >>> roster = Roster(2, suspect_after_s=10)
        >>> roster.hear(WorkerStatus(worker=1, incarnation=0))
        >>> for _ in range(10):
        ...     roster.tick()
        >>> sorted(roster.members()), roster.problems()
        ([0], {1: 'worker 1 has sent no heartbeat for 10 s; its last state was Starting'})

    Args:
        workers: The job's number of workers.
        suspect_after_s: A worker is silent after this many missed heartbeats, at one a second. A step of the
            environments that lasts this many seconds is a problem.

    Attributes:
        suspect_after_s: The same; it may change.
    """

    def __init__(self, workers: int, *, suspect_after_s: int) -> None:
        self.suspect_after_s = suspect_after_s
        self._expected = self._desired = self._most = workers
        self._statuses: dict[int, WorkerStatus] = {}
        self._missed: dict[int, int] = {}
        self._members = frozenset(range(workers))

    def resize(self, workers: int) -> None:
        """Set the job's number of workers."""
        self._desired, self._most = workers, max(self._most, workers)
        self._expected = min(self._expected, workers)
        self._count_members()

    def hear(self, status: WorkerStatus) -> None:
        """Record a heartbeat.

        The heartbeat of a worker that the job never had is ignored: it comes again after the job is known to have
        grown.
        """
        if status.worker < self._most:
            self._statuses[status.worker] = status
            self._missed[status.worker] = 0
            if self._is_member(status.worker) != (status.worker in self._members):
                self._members ^= {status.worker}

    def tick(self) -> None:
        """Count a second in which heartbeats could arrive."""
        for worker in self._missed:
            self._missed[worker] += 1
        self._count_members()

    def forget_missed(self) -> None:
        """Forget missed heartbeats: none could arrive for a while."""
        self._missed = dict.fromkeys(self._missed, 0)
        self._count_members()

    def statuses(self) -> Mapping[int, WorkerStatus]:
        """Return the newest heartbeat of each worker, by index."""
        return dict(self._statuses)

    def members(self) -> frozenset[int]:
        """Return the indices of the workers that a round waits for; see the class. The same object while they stay."""
        return self._members

    def problems(self) -> dict[int, str]:
        """Describe the problems of workers, by index. A worker without a problem has no entry."""
        found = {}
        for worker, status in sorted(self.statuses().items()):
            if problem := self._problem(status):
                found[worker] = f"worker {worker} {problem}"
        return found

    def _count_members(self) -> None:
        members = frozenset(filter(self._is_member, range(self._desired)))
        self._members = self._members if members == self._members else members

    def _is_member(self, worker: int) -> bool:
        if (status := self._statuses.get(worker)) is None:
            return worker < self._expected
        gone = status.state is WorkerState.LEFT or (status.state is WorkerState.FAILED and status.fatal)
        return worker < self._desired and not (gone or self._is_silent(status))

    def _is_silent(self, status: WorkerStatus) -> bool:
        return self._missed[status.worker] >= self.suspect_after_s

    def _problem(self, status: WorkerStatus) -> str | None:
        if status.state in (WorkerState.LEFT, WorkerState.COMPLETE) or status.worker >= self._desired:
            return None
        if status.state is WorkerState.FAILED:
            return f"failed: {reason_of(status.error)}"
        if self._is_silent(status):
            return f"has sent no heartbeat for {self._missed[status.worker]} s; its last state was {status.state}"
        return describe_long_step(status, self.suspect_after_s)


def describe_long_step(status: WorkerStatus, after_s: int) -> str | None:
    """Describe an environment step that has lasted `after_s` seconds or more; None: shorter."""
    if status.in_step_s < after_s:
        return None
    return f"has been in one environment step for {status.in_step_s:.0f} s"
