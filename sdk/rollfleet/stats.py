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
        missed: Batches that were sent and never came: pushed out where the job says `whenFull: DropOldest`, or lost
            with NATS's storage.
        stale: Batches dropped because their version or round was too old.
        corrupt: Batches dropped because they could not be read.
        waited_for_room_s: Seconds that the workers, in their present lives, have waited for room for their batches.
        waited_for_weights_s: Seconds that they have waited for weights, further behind than `weights.maxLag`.
    """

    frames: int
    batches: int
    bytes: int
    repeated: int
    missed: int
    stale: int
    corrupt: int
    waited_for_room_s: float
    waited_for_weights_s: float
