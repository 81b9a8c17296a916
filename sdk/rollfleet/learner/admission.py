"""Decides which arrivals reach the learner: each batch once, none that is too old, and one of each worker in a round.

It does no I/O, and reads no clock.
"""

from collections.abc import Set

from rollfleet.learner.duplicates import DuplicateFilter
from rollfleet.transports.learner_side import Arrival
from rollfleet_api.messages import WorkerStatus


class Round:
    """An open round of mode Sync: which workers it waits for, and which fragments make its batch.

    A round waits for the workers that were members when it opened, less those that leave while it is open, or that had
    not begun when it was closed.

    Example:
        >>> round_ = Round(of=(1, 1), members=frozenset({0, 1}), threshold=0.5)
        >>> sorted(round_.missing), round_.has_enough
        ([0, 1], False)

    Args:
        of: The session of the learner that opened it, and its number.
        members: The workers whose fragments come to this rank.
        threshold: The fraction of the members whose fragments may close the round.

    Attributes:
        fragments: What has come, by worker.
        missing: The workers that the round still waits for.
    """

    def __init__(self, *, of: tuple[int, int], members: frozenset[int], threshold: float) -> None:
        self._of = of
        self._threshold = threshold
        self.fragments: dict[int, Arrival] = {}
        self.reopen(members)

    def asks_for(self, arrival: Arrival) -> bool:
        """Whether a worker collected this arrival for this round."""
        return (arrival.meta.session, arrival.meta.round) == self._of

    @property
    def has_enough(self) -> bool:
        """Whether this rank has the fragments that may close the round."""
        enough = max(1, int(len(self._counted) * self._threshold))  # of those that it waits for now
        return self._came >= enough or (not self.missing and len(self.fragments) > 0)

    def add(self, arrival: Arrival) -> None:
        """Add a worker's fragment."""
        self.fragments[arrival.worker] = arrival
        self.missing.discard(arrival.worker)
        self._came += arrival.worker in self._counted

    def release(self, workers: Set[int]) -> None:
        """Stop waiting for these workers."""
        self.missing -= workers

    def reopen(self, members: frozenset[int]) -> None:
        """Wait for these workers instead: all the others left before they had sent."""
        self._counted, self.missing, self._came = members, set(members), 0

    def move_to(self, of: tuple[int, int], members: frozenset[int]) -> list[Arrival]:
        """Ask for fragments of a later round instead. Returns those that came for this one."""
        dropped, self._of, self.fragments = [*self.fragments.values()], of, {}
        self.reopen(members)
        return dropped

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers that have rows in the batch, in order, also if they have sent nothing."""
        return tuple(sorted(self._counted if self.fragments.keys() & self._counted else self.fragments.keys()))

    def result(self) -> tuple[list[Arrival], list[Arrival]]:
        """Return the fragments that make the batch, in the order of their workers, and the rest.

        A worker that joined after the frames had been divided among the members brings too many. Its fragment counts
        only if all of them left.
        """
        counted = self.fragments.keys() & self._counted or self.fragments.keys()
        late = self.fragments.keys() - counted
        return [self.fragments[each] for each in sorted(counted)], [self.fragments[each] for each in sorted(late)]


class Admission:
    """Admits or drops each arrival, and counts the drops by reason.

    Args:
        max_lag: Versions that a batch may be behind the newest.

    Attributes:
        max_lag: As above. It may change with the number of workers.
        repeated: Batches that had come before: delivered twice, or collected again by a restarted worker.
        stale: Batches too old, by their version or their round.
    """

    def __init__(self, *, max_lag: int) -> None:
        self.max_lag = max_lag
        self._duplicates = DuplicateFilter()
        self.repeated = 0
        self.stale = 0

    @property
    def missed(self) -> int:
        """Sequence numbers that have not come, although the worker's later batches have."""
        return self._duplicates.missed

    def hear(self, status: WorkerStatus) -> None:
        """Note how many batches a worker has sent, so that a killed worker's lost ones can be counted."""
        self._duplicates.expect(status.worker, status.incarnation, status.batches, process=status.process)

    @property
    def dropped(self) -> int:
        """Batches dropped for either reason."""
        return self.repeated + self.stale

    def admit(self, arrival: Arrival, *, lag: float, to: Round | None = None) -> bool:
        """Whether this arrival is for the learner. Counts it if not.

        Args:
            arrival: A batch as it came.
            lag: Versions that it is behind the newest that was sent to its worker.
            to: The open round, which decides alone whether a batch is too old; None: batches belong to no round here.
        """
        of = (arrival.worker, arrival.incarnation, arrival.sequence)
        if not self._duplicates.add(*of, process=arrival.process):
            self.repeated += 1
            return False
        if to is not None:
            return self._admit_to(to, arrival)
        if lag > self.max_lag:
            self.stale += 1
            return False
        return True

    def _admit_to(self, round_: Round, arrival: Arrival) -> bool:
        if not round_.asks_for(arrival):
            self.stale += 1
            return False
        if arrival.worker in round_.fragments:
            self.repeated += 1
            return False
        return True
