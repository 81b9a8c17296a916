"""The ranks of a learner that runs in several processes, and the workers of each rank."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a learner. The batches of worker `w` go to rank `w % ranks`.

    Attributes:
        rank: Number of the process, from 0. Only rank 0 controls workers and sends them weights.
        ranks: Number of processes.

    Raises:
        ValueError: The rank does not exist; the message says what to write.

    Example:
        >>> Rank(1, 4).has(5)
        True
    """

    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        """Refuse an invalid rank."""
        for name in ("rank", "ranks"):
            if type(value := getattr(self, name)) is not int:
                raise ValueError(f"`{name}` is a whole number, not {value!r}: write `{name}=int(...)`")
        if self.ranks < 1:
            raise ValueError(f"`ranks` is the learner's number of processes: 1 or more, not {self.ranks}")
        if not 0 <= self.rank < self.ranks:
            numbers = "0" if self.ranks == 1 else f"one of 0 to {self.ranks - 1}"
            raise ValueError(
                f"`rank` is {numbers} when `ranks` is {self.ranks}, not {self.rank}: under torch.distributed write "
                f"`rank=dist.get_rank(), ranks=dist.get_world_size()`"
            )

    @property
    def leads(self) -> bool:
        """Whether this rank controls the workers."""
        return self.rank == 0

    def has(self, worker: int) -> bool:
        """Return whether this rank gets the batches of a worker."""
        return worker % self.ranks == self.rank

    def share_of(self, workers: int) -> int:
        """Return how many of this many workers send their batches to this rank."""
        return len(range(self.rank, workers, self.ranks))

    def __str__(self) -> str:
        """Return the rank in words."""
        return "the only rank" if self.ranks == 1 else f"rank {self.rank} of {self.ranks}"


ALONE = Rank()
