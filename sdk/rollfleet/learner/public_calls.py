"""What all calls of a collector have in common: its end, errors from the background, Ctrl-C."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from rollfleet.errors import JobEnded, RollfleetError
from rollfleet.learner.background_fill import BackgroundFill
from rollfleet.system.interrupts import uninterrupted
from rollfleet_api.messages import LearnerPhase


class PublicCalls:
    """Encloses a collector's calls, and remembers the errors that they raised: shutdown does not re-raise them.

    Args:
        key: The job's name, for messages.

    Attributes:
        ended: Whether the collector was shut down.
        fill: The background fill; None: none was started.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        # An error holds its traceback, and so the collector.
        self._raised: weakref.WeakSet[RollfleetError] = weakref.WeakSet()
        self.ended = False
        self.fill: BackgroundFill | None = None

    def has_raised(self, error: RollfleetError) -> bool:
        """Whether a call has raised this very error."""
        return error in self._raised

    @contextmanager
    def acting(self, phase: LearnerPhase = LearnerPhase.RUN) -> Iterator[None]:
        """Enclose a call that acts. Ctrl-C does not cut it.

        Args:
            phase: The phase of the workers that it directs.

        Raises:
            JobEnded: The collector was shut down, or its workers leave.
        """
        with self._remembering(), uninterrupted():
            if self.ended:
                raise JobEnded(f"the collector of {self._key} was shut down")
            self.check()
            if phase is LearnerPhase.COMPLETE:
                raise JobEnded(f"{self._key} is complete, and its workers leave; make a new collector")
            yield

    def check(self) -> None:
        """Raise the error that ended the background fill, unless the collector was shut down."""
        if self.fill and not self.ended:
            with self._remembering():
                self.fill.check()

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        try:
            yield
        except RollfleetError as error:
            self._raised.add(error)
            raise
