"""What happened to batches, in numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counters since this learner connected.

    Attributes:
        frames: Of the job, handed to this learner's loop or to one before it.
        batches: The same.
        bytes: That these had on the wire.
        repeated: Batches that came, or were collected, a second time, and were dropped.
        missed: Batches that were sent and never came.
        stale: Batches dropped because their version or round was too old.
        corrupt: Batches dropped because they could not be read.
    """

    frames: int
    batches: int
    bytes: int
    repeated: int
    missed: int
    stale: int
    corrupt: int
