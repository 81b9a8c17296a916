"""Numbers the incarnations of workers: the learner gives each new process of a worker the next number.

It does no I/O. A worker keeps its number when its learner is replaced, and names it in its heartbeats.
"""

from rollfleet_api.messages import WorkerStatus
from rollfleet_api.transfers import Receipt

MOST = 2**16 - 1


class Numbering:
    """The process that each worker is now: of two, the one with the greater number.

    Attributes:
        next: Greater than each number that a process of the job has.

    Example:
        >>> numbering = Numbering()
        >>> numbering.hear(WorkerStatus(worker=3, incarnation=0, process=7)).incarnation
        0
        >>> numbering.hear(WorkerStatus(worker=3, incarnation=0, process=9)).incarnation
        1
    """

    def __init__(self) -> None:
        self._processes: dict[int, tuple[int, int]] = {}  # incarnation and process, by worker
        self._joined = set[int]()  # workers whose process has named its number
        self._first = self.next = 0  # the first: what this learner gives at least

    def process_of(self, worker: int) -> int:
        """Return the random number of a worker's process; 0: it has none yet."""
        return self._processes.get(worker, (0, 0))[1]

    def is_current(self, status: WorkerStatus) -> bool:
        """Whether a heartbeat is not of a process that was replaced."""
        known = self._processes.get(status.worker)
        return known is None or known[1] == status.process

    def hear(self, status: WorkerStatus) -> Receipt | None:
        """Follow a heartbeat. Returns the answer to its worker, if it lacks a number, or has been replaced."""
        known, own = self._processes.get(status.worker), (status.incarnation, status.process)
        # One that lacks a number after it had one is a later process, with the same random number.
        later = known is None or known[1] != status.process or status.worker in self._joined
        if status.follows is None and later:
            known = self._processes[status.worker] = (self._give(known), status.process)
            self._joined.discard(status.worker)
        elif status.follows is not None and (known is None or known < own):
            known = self._processes[status.worker] = own
        assert known is not None
        self.next = max(self.next, min(known[0] + 1, MOST))
        if status.follows is not None and known == own:
            self._joined.add(status.worker)
            return None
        return Receipt(process=known[1], incarnation=known[0])

    def learn(self, status: WorkerStatus) -> None:
        """Follow a heartbeat, and number no one: while this learner joins, and on ranks other than 0."""
        if status.follows is not None:
            self.hear(status)

    def start_at(self, number: int) -> None:
        """Give each new process this number or a greater one, and one that no process that was heard has."""
        self._first = self.next = min(max(self.next, number), MOST)

    def _give(self, known: tuple[int, int] | None) -> int:
        return min(max(known[0] + 1, self._first), MOST) if known else self._first
