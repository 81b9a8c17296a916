"""Deleted jobs whose data is still on NATS."""

import logging
from collections.abc import Collection

from rollfleet_operator.nats_port import JobKey

log = logging.getLogger(__name__)


class Orphans:
    """Which jobs on NATS the cluster no longer has.

    A job counts as deleted at the second look in a row that does not find it. If none of the jobs on NATS is found,
    none counts, until it was there again: the cluster, or what the operator sees of it, is probably another one than
    before, whose jobs come back one by one.

    Attributes:
        found: The deleted jobs, at the last look.

    Example:
        >>> orphans = Orphans()
        >>> a, b = JobKey("default", "a"), JobKey("default", "b")
        >>> orphans.look({a, b}, [a]), orphans.look({a, b}, [a])
        (set(), {JobKey(namespace='default', name='b')})
    """

    def __init__(self) -> None:
        self.found: set[JobKey] = set()
        self._missing: set[JobKey] = set()  # jobs on NATS that the cluster did not have at the last look
        self._left_alone: set[JobKey] = set()  # those that have been missing since all jobs on NATS were

    def look(self, known: set[JobKey], jobs: Collection[JobKey]) -> set[JobKey]:
        """Return the deleted jobs.

        Args:
            known: The jobs on NATS.
            jobs: The jobs in the cluster.
        """
        before, self._missing = self._missing, known.difference(jobs)
        if self._missing == known:
            if known:
                log.warning("none of the %d jobs on NATS exists in the cluster: their data is left alone", len(known))
            self._left_alone = known
        self._left_alone = self._left_alone & self._missing
        self.found = (before & self._missing) - self._left_alone
        return self.found
