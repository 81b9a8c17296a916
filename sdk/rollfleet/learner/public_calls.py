"""What all calls of a collector have in common: its end, errors from the background, Ctrl-C."""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rollfleet.errors import JobEnded, RollfleetError
from rollfleet.learner.background_fill import BackgroundFill
from rollfleet.system.interrupts import uninterrupted
from rollfleet.transports.learner_side import Transport
from rollfleet_api.messages import LearnerPhase

FILL_S = 3.0  # at the end, for the batch on its way into a replay buffer
_FORK: Final = ", of which this one is a fork: iterate there, and pass `num_workers=0` to a DataLoader"


class PublicCalls:
    """Encloses a collector's calls, and remembers the errors that they raised: shutdown does not re-raise them.

    Args:
        collector: The collector. Its transport is closed also if it is dropped, or the program exits.
        transport: The learner's side of a transport.
        key: The job's name, for messages.

    Attributes:
        fill: The background fill; None: none was started.
    """

    def __init__(self, collector: object, transport: Transport, key: str) -> None:
        self._transport, self._key, self._process = transport, key, os.getpid()
        self._close = weakref.finalize(collector, _close, transport, self._process)
        self._raised = set[tuple[type, str]]()  # not the errors, which hold the collector
        self._shut_down = False
        self.fill: BackgroundFill | None = None

    @property
    def ended(self) -> bool:
        """Whether the collector was shut down, or belongs to the process that this one is a fork of."""
        return self._shut_down or os.getpid() != self._process

    def end(self, timeout_s: float | None) -> None:
        """Stop the background fill, and close the transport. In a fork, do nothing. Twice is harmless."""
        self._shut_down = True
        if self.fill:  # in a fork, its thread has ended
            self.fill.leave(FILL_S if timeout_s is None else timeout_s)
        if self._close.detach():
            _close(self._transport, self._process, timeout_s)

    def has_raised(self, error: RollfleetError) -> bool:
        """Whether a call has raised such an error, with the same text."""
        return (type(error), str(error)) in self._raised

    @contextmanager
    def acting(self, phase: LearnerPhase = LearnerPhase.RUN) -> Iterator[None]:
        """Enclose a call that acts. Ctrl-C does not cut it.

        Args:
            phase: The phase of the workers that it directs.

        Raises:
            JobEnded: The collector was shut down, or its workers leave, or this process is a fork of its own.
        """
        with self._remembering(), uninterrupted():
            if self._shut_down:
                raise JobEnded(f"the collector of {self._key} was shut down")
            if self.ended:
                raise JobEnded(f"the collector of {self._key} belongs to another process{_FORK}")
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
            self._raised.add((type(error), str(error)))
            raise


def _close(transport: Transport, process: int, timeout_s: float | None = None) -> None:
    """Close a transport in its own process: a fork's copy would wait for threads that it lacks."""
    if os.getpid() == process:
        transport.close(timeout_s=timeout_s)
