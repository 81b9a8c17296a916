"""Who works for a job, by their heartbeats: who takes part, and who is in trouble."""

from collections.abc import Mapping

from rollfleet_api.messages import WorkerState, WorkerStatus


class Roster:
    """The newest heartbeat of each worker, and how long ago it was.

    Time is counted in beats of whoever listens: `tick` once a second, and only while it could have heard something. So
    neither a clock that jumps nor a listener that was busy, asleep or cut off makes a worker look dead.

    Membership, for rounds of mode Sync: a round waits for each worker that there was when the learner connected (the
    job's `workers`), and for one that was added later once it was heard of. It does not wait for a worker that has left
    (SIGTERM), that failed for good, or that was not heard of for too long since it last was. Whoever comes back takes
    part again. A worker that was never heard of is waited for: it may be a pod that is pending.

    Args:
        workers: How many the job has.
        suspect_after_s: After so many heartbeats missed, of one a second, a worker is taken for gone; after so many
            seconds in one step of its environments it is worth a word.
    """

    def __init__(self, workers: int, *, suspect_after_s: int) -> None:
        self._suspect_after_s = suspect_after_s
        self._expected = self._desired = self._most = workers
        self._statuses: dict[int, WorkerStatus] = {}
        self._missed: dict[int, int] = {}

    def resize(self, workers: int) -> None:
        """The job has so many workers from now on."""
        self._desired, self._most = workers, max(self._most, workers)
        self._expected = min(self._expected, workers)

    def hear(self, status: WorkerStatus) -> bool:
        """A heartbeat came. True: of a life of this worker that was not known.

        Of a worker that the job never had it is passed over: it comes again once the job is known to have grown.
        """
        if status.worker >= self._most:
            return False
        before = self._statuses.get(status.worker)
        self._statuses[status.worker] = status
        self._missed[status.worker] = 0
        return before is None or before.incarnation != status.incarnation

    def tick(self) -> None:
        """A second has passed in which heartbeats could be heard."""
        for worker in self._missed:
            self._missed[worker] += 1

    def begin_anew(self) -> None:
        """Nothing could be heard for a while."""
        self._missed = dict.fromkeys(self._missed, 0)

    def statuses(self) -> Mapping[int, WorkerStatus]:
        """The newest heartbeat of each worker."""
        return dict(self._statuses)

    def members(self) -> frozenset[int]:
        """Indices of the workers that a round waits for; see above."""
        statuses = self.statuses()
        return frozenset(
            worker
            for worker in range(self._desired)
            if (self._takes_part(statuses[worker]) if worker in statuses else worker < self._expected)
        )

    def troubles(self) -> dict[int, str]:
        """What is wrong with workers, in words, by index; who is well is not in it."""
        found = {}
        for worker, status in sorted(self.statuses().items()):
            if trouble := self._trouble(status):
                found[worker] = f"worker {worker} {trouble}"
        return found

    def _takes_part(self, status: WorkerStatus) -> bool:
        gone = status.state is WorkerState.LEFT or (status.state is WorkerState.FAILED and status.fatal)
        return not (gone or self._is_silent(status))

    def _is_silent(self, status: WorkerStatus) -> bool:
        return self._missed[status.worker] >= self._suspect_after_s

    def _trouble(self, status: WorkerStatus) -> str | None:
        if status.state in (WorkerState.LEFT, WorkerState.COMPLETE) or status.worker >= self._desired:
            return None
        if status.state is WorkerState.FAILED:
            return f"failed: {(status.error or 'no reason given').strip().splitlines()[-1]}"
        if self._is_silent(status):
            return f"has not been heard of for {self._missed[status.worker]} s; it was {status.state}"
        return stuck(status, self._suspect_after_s)


def stuck(status: WorkerStatus, after_s: int) -> str | None:
    """What to say of a worker that has not got on with a step for so long; None: nothing."""
    if status.in_step_s < after_s:
        return None
    return f"has been in one environment step for {status.in_step_s:.0f} s"
