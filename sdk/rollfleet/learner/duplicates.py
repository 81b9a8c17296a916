"""What has come of each life of each worker, by sequence numbers: what is new, what came before, what is missing."""

WINDOW = 4096  # batches of one life of a worker among which the order may differ from the one they were sent in
INCARNATIONS = 4  # of one worker that are remembered
_ALL = (1 << WINDOW) - 1


class DuplicateFilter:
    """Remembers which batches have come, in memory that does not grow with their number."""

    def __init__(self) -> None:
        self._incarnations: dict[int, dict[int, _Incarnation]] = {}  # worker -> incarnation -> what was seen of it
        self._missed_before = 0  # of lives that are forgotten

    @property
    def missed(self) -> int:
        """Sequence numbers that have not come, though later ones of the same life have."""
        return self._missed_before + sum(
            incarnation.missed for incarnations in self._incarnations.values() for incarnation in incarnations.values()
        )

    def add(self, worker: int, incarnation: int, sequence: int) -> bool:
        """This one has come. False: it had come before, or so long after its successors that nobody knows any more."""
        incarnations = self._incarnations.setdefault(worker, {})
        if incarnation in incarnations:
            return incarnations[incarnation].add(sequence)
        if len(incarnations) >= INCARNATIONS:
            oldest = min(incarnations)
            if incarnation < oldest:
                return False
            self._missed_before += incarnations.pop(oldest).missed
        incarnations[incarnation] = _Incarnation(sequence)
        return True


class _Incarnation:
    """The sequence numbers of one life of a worker that have come, in whatever order.

    Numbers before the first that came are no gap: an earlier learner may have had them. It takes half a kilobyte,
    whatever is sent.
    """

    __slots__ = ("_count", "_first", "_newest", "_seen")

    def __init__(self, sequence: int) -> None:
        self._first = self._newest = sequence
        self._seen = 1  # bit i: the number i before the newest has come
        self._count = 1

    @property
    def missed(self) -> int:
        return self._newest - self._first + 1 - self._count

    def add(self, sequence: int) -> bool:
        """False: it has come before, or so long after its successors that nobody knows any more."""
        age = self._newest - sequence
        if age >= WINDOW or (age >= 0 and self._seen >> age & 1):
            return False
        if age < 0:
            self._seen = (self._seen << -age | 1) & _ALL if -age < WINDOW else 1
            self._newest = sequence
        else:
            self._seen |= 1 << age
            self._first = min(self._first, sequence)
        self._count += 1
        return True
