"""Which of a learner's processes this is, and which workers' batches are its own."""

import re
from dataclasses import dataclass

from rollfleet_api.subjects import LEARNER, Subjects

_CONSUMER = re.compile(rf"{LEARNER}-(0|[1-9][0-9]*)-of-([1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Rank:
    """One of the processes of a learner. Worker `w`'s batches go to rank `w % ranks`.

    Attributes:
        rank: Its number, from 0. Rank 0 alone tells workers what to do, and sends them weights.
        ranks: How many there are.

    Raises:
        ValueError: There is no such rank; says what to write.
    """

    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no rank."""
        for name in ("rank", "ranks"):
            if type(value := getattr(self, name)) is not int:
                raise ValueError(f"`{name}` is a whole number, not {value!r}: write `{name}=int(...)`")
        if self.ranks < 1:
            raise ValueError(f"`ranks` says how many processes the learner has: 1 or more, not {self.ranks}")
        if not 0 <= self.rank < self.ranks:
            numbers = "0" if self.ranks == 1 else f"one of 0 to {self.ranks - 1}"
            raise ValueError(
                f"`rank` is {numbers} where `ranks` is {self.ranks}, not {self.rank}: under torch.distributed write "
                f"`rank=dist.get_rank(), ranks=dist.get_world_size()`"
            )

    @property
    def leads(self) -> bool:
        """Whether workers hear of this one."""
        return self.rank == 0

    def has(self, worker: int) -> bool:
        """Whether the batches of this worker are its own."""
        return worker % self.ranks == self.rank

    @property
    def consumer(self) -> str:
        """Name of its durable consumer."""
        return LEARNER if self.ranks == 1 else f"{LEARNER}-{self.rank}-of-{self.ranks}"

    @classmethod
    def of_consumer(cls, name: str) -> "Rank | None":
        """The inverse of `consumer`; None: it is no learner's."""
        if name == LEARNER:
            return cls()
        if not (found := _CONSUMER.fullmatch(name)):
            return None
        rank, ranks = map(int, found.groups())
        return cls(rank, ranks) if ranks > 1 and rank < ranks else None

    def filters(self, subjects: Subjects, workers: int) -> list[str]:
        """Where its workers publish, of the first so many; none: it takes whatever comes."""
        if self.ranks == 1:
            return []
        return [subjects.batches_of(worker) for worker in range(self.rank, max(workers, self.ranks), self.ranks)]

    def __str__(self) -> str:
        """In words."""
        return "the only rank" if self.ranks == 1 else f"rank {self.rank} of {self.ranks}"


ALONE = Rank()
