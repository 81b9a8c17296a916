"""One round of mode Sync on rank 0: which workers it waits for, and which fragments make its batch."""

from collections.abc import Set

from rollfleet.transports.learner_side import Arrival


class Round:
    """An open round. It does no I/O, and reads no clock.

    A round waits for the workers that were members when it opened, less those that leave while it is open, or that had
    not begun when it was closed.

    Example:
        >>> round_ = Round(frozenset({0, 1}), enough=1)
        >>> sorted(round_.missing), round_.has_enough
        ([0, 1], False)

    Args:
        members: The workers whose fragments come to this rank.
        enough: The number of fragments that may close the round.

    Attributes:
        fragments: What has come, by worker.
    """

    def __init__(self, members: frozenset[int], *, enough: int) -> None:
        self._members = self._counted = members
        self._enough = enough
        self.fragments: dict[int, Arrival] = {}

    @property
    def missing(self) -> frozenset[int]:
        """The workers that the round still waits for."""
        return self._members - self.fragments.keys()

    @property
    def has_enough(self) -> bool:
        """Whether this rank has the fragments that may close the round."""
        enough = len(self.fragments.keys() & self._counted) >= self._enough
        return enough or (not self.missing and len(self.fragments) > 0)

    def add(self, arrival: Arrival) -> None:
        """Add a worker's fragment."""
        self.fragments[arrival.worker] = arrival

    def release(self, workers: Set[int]) -> None:
        """Stop waiting for these workers."""
        self._members -= workers

    def reopen(self, members: frozenset[int]) -> None:
        """Wait for these workers instead: all the others left before they had sent."""
        self._members = self._counted = members

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
