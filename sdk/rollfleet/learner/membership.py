"""The workers of a learner: named, added and removed during a run."""

from collections.abc import Collection, Iterable

from rollfleet.arguments import plain, shown, whole_number
from rollfleet.errors import JobInvalid
from rollfleet.transports.learner_side import Elastic, Transport
from rollfleet_api.job import MAX_WORKERS


class Membership:
    """The workers of a transport, by their indices."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def all(self) -> tuple[int, ...]:
        """Return the workers whose batches come to this rank, in the order of their fragments."""
        rank = self._transport.rank
        return tuple(sorted(worker for worker in self._transport.members() if rank.has(worker)))

    def these(self, worker_ids: int | Collection[int] | None) -> tuple[int, ...] | None:
        """Return the workers that a user named; None: all.

        Raises:
            JobInvalid: The worker is unknown.
        """
        if worker_ids is None:
            return None
        given = plain(worker_ids)
        several = isinstance(given, Iterable) and not isinstance(given, str)
        try:
            these = tuple(whole_number(each, "worker_ids") for each in (given if several else (given,)))
        except TypeError:  # a tensor without dimensions is an iterable that cannot be iterated
            raise JobInvalid(f"worker_ids: expected an int or a list of them, got {shown(given)}") from None
        members = self._transport.members()
        for worker in these:
            if worker not in members:
                raise JobInvalid(f"there is no worker {worker}; the workers are {sorted(members)}")
        return these

    def add(self, count: int) -> list[int]:
        """Start more workers. Returns their indices.

        Raises:
            JobInvalid: The workers are not the learner's own.
        """
        count = whole_number(count, "count", most=MAX_WORKERS)
        return self._elastic().add_workers(count)

    def remove(self, worker_ids: int | Collection[int]) -> None:
        """Remove these workers.

        Raises:
            JobInvalid: The worker is unknown, none would remain, or the workers are not the learner's own.
        """
        these = self.these(worker_ids)
        if these is None:
            raise JobInvalid("worker_ids: expected an int or a list of them, got None")
        if set(these) >= self._transport.members():
            raise JobInvalid("no worker would remain: shut the collector down instead")
        self._elastic().remove_workers(these)

    def _elastic(self) -> Elastic:
        if self._transport.elastic is None:
            raise JobInvalid(
                "only worker processes and pods of this collector can be added or removed: make it with `workers=1` or "
                "more, or change `workers` of the job that it connected to"
            )
        return self._transport.elastic
