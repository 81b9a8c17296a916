"""Finds repeated and missing batches, by the sequence numbers of each incarnation of each worker."""

WINDOW = 4096  # batches of one incarnation that may arrive out of order
INCARNATIONS = 4  # remembered for each worker
_ALL = (1 << WINDOW) - 1


class DuplicateFilter:
    """Remembers which batches have come, in memory that does not grow with their number.

    Example:
        >>> seen = DuplicateFilter()
        >>> seen.add(0, 0, 7), seen.add(0, 0, 7), seen.add(0, 0, 9), seen.missed
        (True, False, True, 1)
    """

    def __init__(self) -> None:
        self._incarnations: dict[int, dict[int, _Incarnation]] = {}  # by worker, then by incarnation
        self._missed_before = 0  # of forgotten incarnations

    @property
    def missed(self) -> int:
        """Sequence numbers that have not come, although later ones of the same incarnation have."""
        return self._missed_before + sum(
            incarnation.missed for incarnations in self._incarnations.values() for incarnation in incarnations.values()
        )

    def add(self, worker: int, incarnation: int, sequence: int) -> bool:
        """Add a batch. Returns False if it had come before, or comes too late to know."""
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
    """The sequence numbers of one incarnation that have come, in any order.

    Numbers before the first one are no gap: an earlier learner may have received them. It takes half a kilobyte.
    """

    __slots__ = ("_count", "_first", "_newest", "_seen")

    def __init__(self, sequence: int) -> None:
        self._first = self._newest = sequence
        self._seen = 1  # bit i: the number `newest - i` has come
        self._count = 1

    @property
    def missed(self) -> int:
        return self._newest - self._first + 1 - self._count

    def add(self, sequence: int) -> bool:
        """Add a number. Returns False if it had come before, or comes too late to know."""
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
