"""Which arrivals reach the learner: each batch once, none that is too old, none of another round."""

from rollfleet.learner.duplicates import DuplicateFilter
from rollfleet.transports.learner_side import Arrival


class Admission:
    """Decides for each arrival, and counts why it was turned away.

    Args:
        max_lag: Versions that a batch may be behind the newest.
        session: The learner's own session: in sync mode, batches asked for by an earlier one are too old.
        sync: Whether batches belong to rounds.

    Attributes:
        max_lag: As above. It may change with the number of workers.
        repeated: Batches that had been seen already: delivered twice, or collected again by a worker that started anew.
        stale: Batches too old, by their version or their round.
    """

    def __init__(self, *, max_lag: int, session: int, sync: bool) -> None:
        self.max_lag, self._session, self._sync = max_lag, session, sync
        self._round = 0
        self._in_round: set[int] = set()
        self._duplicates = DuplicateFilter()
        self.repeated = 0
        self.stale = 0

    @property
    def missed(self) -> int:
        """Sequence numbers that have not come, though later ones of the same life have."""
        return self._duplicates.missed

    @property
    def dropped(self) -> int:
        """All that was turned away."""
        return self.repeated + self.stale

    def open_round(self, number: int) -> None:
        """From now on, one batch of each worker belongs to this round."""
        self._round = number
        self._in_round.clear()

    def admit(self, arrival: Arrival, *, version: int) -> bool:
        """Whether this one is for the learner.

        Args:
            arrival: What came.
            version: The newest version that was sent.
        """
        if not self._duplicates.add(arrival.worker, arrival.incarnation, arrival.sequence):
            self.repeated += 1
            return False
        if self._sync:
            return self._admit_to_round(arrival)
        if version - arrival.meta.version > self.max_lag and arrival.meta.version > 0:
            self.stale += 1
            return False
        return True

    def _admit_to_round(self, arrival: Arrival) -> bool:
        if (arrival.meta.session, arrival.meta.round) != (self._session, self._round):
            self.stale += 1
            return False
        if arrival.worker in self._in_round:
            self.repeated += 1
            return False
        self._in_round.add(arrival.worker)
        return True
