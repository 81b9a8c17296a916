"""The seam between the collector and whoever collects, as a Protocol."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rollfleet_api.messages import BatchMeta, Control, LearnerStatus, Parameter, RankStatus, WorkerStatus
from rollfleet_api.ranks import ALONE, Rank

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rollfleet.data.write_quota import WriteQuota
    from rollfleet.weights.layout import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival:
    """One worker's batch, ready for the learner.

    Attributes:
        worker: Index of the worker in its job.
        incarnation: Which life of that worker made it.
        sequence: Its number in that life, from 0.
        meta: What it says of itself.
        batch: TensorDict `[envs, T]`, on the learner's device where one was named.
        episode_returns: float64 `[episodes]`: sums of rewards of the episodes that ended in it.
        episode_lengths: int64 `[episodes]`: their lengths in frames.
        nbytes: Its size on the wire.
        stored: Its worker has put it into the learner's replay buffer; `batch` is empty.
    """

    worker: int
    incarnation: int
    sequence: int
    meta: BatchMeta
    batch: "TensorDict"
    episode_returns: "Tensor"
    episode_lengths: "Tensor"
    nbytes: int
    stored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What a transport knows of the job's past when the learner connects.

    Attributes:
        session: Of this learner: one more than the last one's.
        version: The newest version of the weights that was ever published; 0: none.
        round: The last round that was opened; 0: none.
        frames: That the learners before this one were handed, as of the last heartbeat.
        batches: The same.
    """

    session: int
    version: int
    round: int
    frames: int = 0
    batches: int = 0


@runtime_checkable
class Elastic(Protocol):
    """What a transport can do besides, where the workers are its own."""

    def add_workers(self, count: int) -> list[int]:
        """Start more workers; their indices, which were never used before."""
        ...

    def remove_workers(self, workers: Collection[int]) -> None:
        """Let these leave: each sends what it has so far. They are no members from now on."""
        ...


@runtime_checkable
class Lends(Protocol):
    """What a transport can do besides, where workers can reach the learner's memory."""

    def lend(self, parameters: tuple[Parameter, ...], nbytes: int) -> "Snapshot | None":
        """A snapshot in memory that workers read: filled, and given to `send_weights` next, it need not be copied.

        None: what was lent last has not come back yet.
        """
        ...


@runtime_checkable
class Stores(Protocol):
    """What a transport can do besides, where workers can reach the learner's memory."""

    @property
    def quota(self) -> "WriteQuota | None":
        """What they write into its replay buffer; None: their batches come to the learner."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What the other ranks of a learner have been handed.

    Attributes:
        frames: To their loops.
        batches: To their loops.
        dropped: Batches that they dropped.
    """

    frames: int = 0
    batches: int = 0
    dropped: int = 0


@runtime_checkable
class Ranked(Protocol):
    """What a transport can do besides, where a learner may be several processes."""

    @property
    def rank(self) -> Rank:
        """Which of them this is. Only batches of its own workers come; `members` and `workers` are of them all."""
        ...

    def elsewhere(self) -> Elsewhere:
        """To rank 0: what the others have been handed."""
        ...

    def wait_for_others(self, round_: int | None, *, timeout_s: float) -> bool:
        """To rank 0: wait until those that are there have been handed this round; None: until all are there.

        False: one was not, in time. Who is not heard of for 10 s is not there, and not waited for.
        """
        ...

    def may_close(self, round_: int) -> bool:
        """To rank 0: whether those that are there have enough shares of this round."""
        ...

    def heard(self) -> Control | None:
        """To the others: what rank 0 said last; None: nothing yet."""
        ...

    def report_rank(self, status: RankStatus) -> None:
        """From the others: what rank 0 must know, now and in each heartbeat. The transport adds whose life it is."""
        ...


class Transport(Protocol):
    """What the collector asks of a transport. All methods but `receive` return at once.

    An error that happened in the background is raised by the next call of any method.
    """

    @property
    def resumed(self) -> Resumed:
        """The job's past."""
        ...

    def control(self, control: Control) -> None:
        """Tell all workers, also those that join later, what to do. Goes out after the weights sent before it."""
        ...

    def send_weights(self, version: int, snapshot: "Snapshot", *, workers: frozenset[int] | None = None) -> None:
        """Send a version to all workers, or to these alone. `spent` gives the snapshot back.

        Those that join later get the newest that was meant for them.
        """
        ...

    def spent(self) -> "list[Snapshot]":
        """Snapshots that are no longer needed, each once."""
        ...

    def receive(self, *, timeout_s: float) -> Arrival | None:
        """The next batch; None: none came in time. A batch may come twice, or come after a gap."""
        ...

    def take(self, arrival: Arrival) -> None:
        """This batch is the learner's, or is dropped: it need not come again, and its worker may go on."""
        ...

    def members(self) -> frozenset[int]:
        """Indices of the workers that a round waits for: those that there should be now."""
        ...

    def workers(self) -> Mapping[int, WorkerStatus]:
        """The newest heartbeat of each worker."""
        ...

    def report(self, status: LearnerStatus) -> None:
        """What the learner's heartbeat says from now on."""
        ...

    def corrupt(self) -> int:
        """Batches that could not be read, so far."""
        ...

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        ...


def rank_of(transport: Transport) -> Rank:
    """Which of a learner's processes has this transport."""
    return transport.rank if isinstance(transport, Ranked) else ALONE
