"""What has come of each life of each worker, by sequence numbers: what is new, what came before, what is missing."""

WINDOW = 4096  # batches of one life of a worker among which the order may differ from the one they were sent in
LIVES = 4  # of one worker that are remembered


class Lives:
    """Remembers which batches have come, in memory that does not grow with their number."""

    def __init__(self) -> None:
        self._lives: dict[int, dict[int, _Life]] = {}  # worker -> incarnation -> what was seen of it
        self._missed_before = 0  # of lives that are forgotten

    @property
    def missed(self) -> int:
        """Sequence numbers that have not come, though later ones of the same life have."""
        return self._missed_before + sum(life.missed for lives in self._lives.values() for life in lives.values())

    def add(self, worker: int, incarnation: int, sequence: int) -> bool:
        """This one has come. False: it had come before, or so long after its successors that nobody knows any more."""
        lives = self._lives.setdefault(worker, {})
        if incarnation in lives:
            return lives[incarnation].add(sequence)
        if len(lives) >= LIVES:
            oldest = min(lives)
            if incarnation < oldest:
                return False
            self._missed_before += lives.pop(oldest).missed
        lives[incarnation] = _Life(sequence)
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
