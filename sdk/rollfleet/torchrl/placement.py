"""Where collectors of a program run that does not say so itself: what `python -m rollfleet.torchrl` was told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollfleet.cluster.settings import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The place of a program's collectors.

    Attributes:
        workers: The workers of each collector; None: as many as the program asks for.
        cluster: The cluster of their pods; None: processes of this machine.
        job: The name of a running job; None: the collectors' own workers.
        nats: The address of that job's NATS server; None: that of the environment.
    """

    workers: int | None = None
    cluster: Cluster | None = None
    job: str | None = None
    nats: str | None = None

    @property
    def moves(self) -> bool:
        """Whether a collector that would run in the program's process runs elsewhere."""
        return self != Placement()

    def of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keywords of the place that a program's arguments lack."""
        own = {"cluster": self.cluster, "job": self.job, "nats": self.nats}
        return own if all(arguments.get(name) is None for name in own) else {}

    def spread(self, makes: Sequence[Any]) -> list[Any]:
        """Return an environment for each worker, from those of the program in turn."""
        return [makes[index % len(makes)] for index in range(self.workers or len(makes))]


_present = Placement()


def place(placement: Placement) -> None:
    """Put the collectors that this process makes from now on there."""
    global _present
    _present = placement


def present() -> Placement:
    """Return the present place."""
    return _present
