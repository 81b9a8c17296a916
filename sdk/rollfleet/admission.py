"""Which arrivals reach the learner: each batch once, none that is too old, none of another round."""

from rollfleet.transports.transport import Arrival

WINDOW = 4096  # batches of one life of a worker among which the order may differ from the one they were sent in
LIVES = 4  # of one worker that are remembered


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
        self._lives: dict[int, dict[int, _Life]] = {}  # worker -> incarnation -> what was seen of it
        self._missed_before = 0  # of lives that are forgotten
        self.repeated = 0
        self.stale = 0

    @property
    def missed(self) -> int:
        """Sequence numbers that have not come, though later ones of the same life have."""
        return self._missed_before + sum(life.missed for lives in self._lives.values() for life in lives.values())

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
        if not self._is_new(arrival):
            self.repeated += 1
            return False
        if self._sync:
            return self._admit_to_round(arrival)
        if version - arrival.meta.version > self.max_lag and arrival.meta.version > 0:
            self.stale += 1
            return False
        return True

    def _is_new(self, arrival: Arrival) -> bool:
        lives = self._lives.setdefault(arrival.worker, {})
        if arrival.incarnation in lives:
            return lives[arrival.incarnation].add(arrival.sequence)
        if len(lives) >= LIVES:
            oldest = min(lives)
            if arrival.incarnation < oldest:
                return False
            self._missed_before += lives.pop(oldest).missed
        lives[arrival.incarnation] = _Life(arrival.sequence)
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


class _Life:
    """The sequence numbers of one life of a worker that have come, in whatever order.

    Numbers before the first that came are no gap: an earlier learner may have had them.
    """

    def __init__(self, sequence: int) -> None:
        self._first = self._newest = sequence
        self._from = self._to = sequence  # all of these have come
        self._others: set[int] = set()  # that have come besides, among the newest WINDOW
        self._count = 1

    @property
    def missed(self) -> int:
        return self._newest - self._first + 1 - self._count

    def add(self, sequence: int) -> bool:
        """False: it has come before, or so long after its successors that nobody knows any more."""
        if self._from <= sequence <= self._to or sequence in self._others or sequence <= self._newest - WINDOW:
            return False
        self._count += 1
        self._first, self._newest = min(self._first, sequence), max(self._newest, sequence)
        self._others.add(sequence)
        while self._to + 1 in self._others:
            self._to += 1
            self._others.discard(self._to)
        while self._from - 1 in self._others:
            self._from -= 1
            self._others.discard(self._from)
        if len(self._others) >= 2 * WINDOW:
            self._others = {each for each in self._others if each > self._newest - WINDOW}
        return True
