"""Decides which arrivals reach the learner: each batch once, none that is too old, none of another round."""

from rollfleet.learner.duplicates import DuplicateFilter
from rollfleet.transports.learner_side import Arrival
from rollfleet_api.messages import WorkerStatus


class Admission:
    """Admits or drops each arrival, and counts the drops by reason.

    Args:
        max_lag: Versions that a batch may be behind the newest.
        session: The learner's session. In mode Sync, a batch of an earlier session is too old.
        sync: Whether batches belong to rounds.

    Attributes:
        max_lag: As above. It may change with the number of workers.
        repeated: Batches that had come before: delivered twice, or collected again by a restarted worker.
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
        """Sequence numbers that have not come, although the worker's later batches have."""
        return self._duplicates.missed

    def hear(self, status: WorkerStatus) -> None:
        """Note how many batches a worker has sent, so that a killed worker's lost ones can be counted."""
        self._duplicates.expect(status.worker, status.incarnation, status.batches - 1)  # the last one may be under way

    @property
    def dropped(self) -> int:
        """Batches dropped for either reason."""
        return self.repeated + self.stale

    def open_round(self, number: int) -> None:
        """Open a round: one batch of each worker belongs to it."""
        self._round = number
        self._in_round.clear()

    def admit(self, arrival: Arrival, *, version: int, replaced: bool = False) -> bool:
        """Whether this arrival is for the learner. Counts it if not.

        `version` is the newest that was sent to its worker. `replaced`: another learner's weights of that number acted.
        """
        of = (arrival.worker, arrival.incarnation, arrival.sequence)
        if not self._duplicates.add(*of, process=arrival.process):
            self.repeated += 1
            return False
        if self._sync:
            return self._admit_to_round(arrival)
        if replaced or (version - arrival.meta.version > self.max_lag and arrival.meta.version > 0):
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
