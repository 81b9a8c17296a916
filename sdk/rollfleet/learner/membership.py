"""Who collects for a learner: named, added and removed in mid-run."""

from collections.abc import Collection

from rollfleet.errors import JobInvalid
from rollfleet.transports.learner_side import Elastic, Transport, rank_of


class Membership:
    """The workers of a transport, by their indices."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def all(self) -> tuple[int, ...]:
        """Those whose batches come here, in the order of their shares."""
        rank = rank_of(self._transport)
        return tuple(sorted(worker for worker in self._transport.members() if rank.has(worker)))

    def these(self, worker_ids: int | Collection[int] | None) -> tuple[int, ...] | None:
        """The workers that a user names; None: all.

        Raises:
            JobInvalid: One is not there.
        """
        if worker_ids is None:
            return None
        these = (worker_ids,) if isinstance(worker_ids, int) else tuple(worker_ids)
        members = self._transport.members()
        for worker in these:
            if worker not in members:
                raise JobInvalid(f"there is no worker {worker}; there are {sorted(members)}")
        return these

    def add(self, count: int) -> list[int]:
        """Start more; their indices.

        Raises:
            JobInvalid: The workers are not the learner's own.
        """
        return self._elastic().add_workers(count)

    def remove(self, worker_ids: int | Collection[int]) -> None:
        """Let these leave.

        Raises:
            JobInvalid: One is not there, nobody would be left, or the workers are not the learner's own.
        """
        these = self.these(worker_ids) or ()
        if set(these) >= self._transport.members():
            raise JobInvalid("these are all workers there are: shut the collector down instead")
        self._elastic().remove_workers(these)

    def _elastic(self) -> Elastic:
        if not isinstance(self._transport, Elastic):
            raise JobInvalid("the workers are not this collector's own: scale the job instead (`workers` in its spec)")
        return self._transport
