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
        # By worker, then by incarnation and process, in the order of their first batches.
        self._incarnations: dict[int, dict[tuple[int, int], _Incarnation]] = {}
        self._missed_before = 0  # of forgotten incarnations

    @property
    def missed(self) -> int:
        """Sequence numbers that have not come, although the worker's later batches have."""
        known = [*self._incarnations.values()]  # copies: a thread that fills a buffer may add some meanwhile
        return self._missed_before + sum(each.missed for incarnations in known for each in [*incarnations.values()])

    def add(self, worker: int, incarnation: int, sequence: int, *, process: int = 0) -> bool:
        """Add a batch. Returns False if it had come before, or comes too late to know.

        `process` is a random number: two processes may have had the same incarnation.
        """
        if (known := self._known(worker, incarnation, process, first=sequence)) is None:
            return False
        if known.is_empty:
            for earlier in [*self._incarnations[worker].values()]:
                earlier.ended = earlier is not known  # its successor's batches come, behind its own
        return known.add(sequence)

    def expect(self, worker: int, incarnation: int, sent: int, *, process: int = 0) -> None:
        """Note that an incarnation has sent this many: those that never come count once its successor's do.

        Of one that had sent some before it was heard of, an earlier learner may have received them.
        """
        if (incarnation, process) in self._incarnations.get(worker, {}) or not sent:
            known = self._known(worker, incarnation, process, first=0)
            if known and not known.ended:
                known.expected = max(known.expected, sent)

    def _known(self, worker: int, incarnation: int, process: int, *, first: int) -> "_Incarnation | None":
        """Return an incarnation, new ones in place of the oldest; None: it is older than those that are known."""
        incarnations, key = self._incarnations.setdefault(worker, {}), (incarnation, process)
        if key not in incarnations:
            if len(incarnations) >= INCARNATIONS:
                oldest = next(iter(incarnations))
                if oldest[0] > incarnation:
                    return None
                self._missed_before += incarnations.pop(oldest).missed
            incarnations[key] = _Incarnation(first)
        return incarnations[key]


class _Incarnation:
    """The sequence numbers of one incarnation that have come, in any order.

    Numbers before the first one are not a gap: an earlier learner may have received them. It takes half a kilobyte.

    Attributes:
        expected: Number of the batches that it has sent, by its heartbeats.
        ended: Whether its successor's batches come.
    """

    __slots__ = ("_count", "_first", "_newest", "_seen", "ended", "expected")

    def __init__(self, first: int) -> None:
        self.expected, self.ended = 0, False
        self._first, self._newest = first, first - 1
        self._seen = 0  # bit i: the number `newest - i` has come
        self._count = 0

    @property
    def is_empty(self) -> bool:
        """Whether none has come."""
        return not self._count

    @property
    def missed(self) -> int:
        newest = max(self._newest, self.expected - 1) if self.ended else self._newest
        return newest - self._first + 1 - self._count

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
